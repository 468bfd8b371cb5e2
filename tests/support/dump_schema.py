"""Prints the schema as the catalogs have it, in the same words on every server version we support.

`pg_dump` differs between versions (not-null constraints have names since 18, settings come and go), so this reads the
catalogs: every object of the schema `stepwell`, in an order that does not hang on when it was made.

    .venv/bin/python -m tests.support.dump_schema > src/stepwell/_store/schema.sql
"""

from __future__ import annotations

import asyncio
import sys

import asyncpg

from stepwell.testing import Harness

HEAD = """\
-- The schema `stepwell` as all migrations together leave it, for reading. Generated; tests hold it equal to them:
--   .venv/bin/python -m tests.support.dump_schema > src/stepwell/_store/schema.sql
-- Why things are as they are stands in the migrations.
"""

FUNCTIONS = """
select pg_get_functiondef(p.oid) as definition
from pg_proc p
where p.pronamespace = $1::text::regnamespace
order by p.proname, pg_get_function_identity_arguments(p.oid)
"""

TABLES = """
select c.oid, c.relname as name, c.reloptions as options
from pg_class c
where c.relnamespace = $1::text::regnamespace and c.relkind = 'r'
order by c.relname
"""

COLUMNS = """
select quote_ident(a.attname) as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as required,
       case when a.attcollation <> t.typcollation then quote_ident(l.collname) end as collation,
       a.attidentity::text as identity, a.attgenerated::text as generated, pg_get_expr(d.adbin, d.adrelid) as expression
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_collation l on l.oid = a.attcollation
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""

# Not-null constraints ('n') are in the catalog since 18, and are printed with their columns.
CONSTRAINTS = """
select quote_ident(c.conname) as name, pg_get_constraintdef(c.oid, true) as definition
from pg_constraint c
where c.conrelid = $1 and c.contype <> 'n'
order by c.contype <> 'p', c.conname
"""

INDEXES = """
select pg_get_indexdef(i.indexrelid) as definition
from pg_index i
join pg_class c on c.oid = i.indexrelid
where i.indrelid = $1 and not exists (select from pg_constraint k where k.conindid = i.indexrelid)
order by c.relname
"""

OTHERS = """
select format('%s %s', c.relkind, c.relname) as found
from pg_class c
where c.relnamespace = $1::text::regnamespace and c.relkind not in ('r', 'i', 'S')
union all
select format('trigger %s', t.tgname)
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where c.relnamespace = $1::text::regnamespace and not t.tgisinternal
union all
select format('type %s', t.typname)
from pg_type t
where t.typnamespace = $1::text::regnamespace and t.typrelid = 0 and t.typelem = 0
"""


# Rows that are there from the beginning, and are never written.
LOCKS = """
select min(number) as first, max(number) as last
from (select number, number - row_number() over (order by number) as island from {schema}.locks) l
group by island
order by 1
"""


async def dump(connection: asyncpg.Connection, schema: str = "stepwell") -> str:
    """The schema as one script, which makes the same schema in an empty database."""
    await connection.execute("set search_path to pg_catalog")
    functions = await connection.fetch(FUNCTIONS, schema)
    tables = await connection.fetch(TABLES, schema)
    parts = [HEAD.replace("stepwell`", f"{schema}`"), f"create schema {schema};\n"]
    parts += [row["definition"].strip() + ";\n" for row in functions]
    parts += [await _table(connection, schema, table) for table in tables]
    if unknown := [row["found"] for row in await connection.fetch(OTHERS, schema)]:
        raise NotImplementedError(f"the dump knows nothing of {', '.join(unknown)} yet")
    version, oldest_code = await connection.fetchrow(f"select version, oldest_code from {schema}.meta")
    parts.append(f"insert into {schema}.meta (version, oldest_code) values ({version}, {oldest_code});\n")
    ranges = await connection.fetch(LOCKS.format(schema=schema))
    parts += [f"insert into {schema}.locks select generate_series({row['first']}, {row['last']});\n" for row in ranges]
    await connection.execute("reset search_path")
    return "\n".join(parts)


async def dump_of(url: str, schema: str = "stepwell") -> str:
    """The schema of the database with this URL."""
    connection = await asyncpg.connect(url)
    try:
        return await dump(connection, schema)
    finally:
        await connection.close()


async def _table(connection: asyncpg.Connection, schema: str, table: asyncpg.Record) -> str:
    columns = await connection.fetch(COLUMNS, table["oid"])
    width = max(len(column["name"]) for column in columns)
    lines = [f"  {column['name']:{width}}  {_column(column)}" for column in columns]
    constraints = await connection.fetch(CONSTRAINTS, table["oid"])
    lines += [f"  constraint {constraint['name']} {constraint['definition']}" for constraint in constraints]
    options = f" with ({', '.join(table['options'])})" if table["options"] else ""
    text = f"create table {schema}.{table['name']} (\n" + ",\n".join(lines) + f"\n){options};\n"
    for index in await connection.fetch(INDEXES, table["oid"]):
        text += index["definition"].replace(" WHERE ", "\n  WHERE ") + ";\n"
    return text


def _column(column: asyncpg.Record) -> str:
    text = str(column["type"])
    if column["collation"]:
        text += f" collate {column['collation']}"
    if column["identity"]:
        text += f" generated {'always' if column['identity'] == 'a' else 'by default'} as identity"
    elif column["generated"]:
        text += f" generated always as ({column['expression']}) stored"
    elif column["expression"]:
        text += f" default {column['expression']}"
    return text + " not null" if column["required"] else text


async def main() -> None:
    async with Harness() as harness:
        sys.stdout.write(await dump_of(harness.url))


if __name__ == "__main__":
    asyncio.run(main())
