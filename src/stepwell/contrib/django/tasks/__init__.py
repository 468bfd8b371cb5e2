"""The backend of Django's tasks, which `TASKS` names as `stepwell.contrib.django.tasks.StepwellBackend`."""

from stepwell.contrib.django.tasks.backend import StepwellBackend

__all__ = ["StepwellBackend"]
