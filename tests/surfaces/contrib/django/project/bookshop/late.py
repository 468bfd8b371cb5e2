"""A task in a module that nothing in the project imports."""

import django

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task


@task
def print_late() -> str:
    return "late"
