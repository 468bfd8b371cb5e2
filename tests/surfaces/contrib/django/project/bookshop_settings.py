"""The settings of the test project; its database is the one of $BOOKSHOP_DATABASE_URL."""

import os
from urllib.parse import parse_qsl, unquote, urlsplit

import django

_url = urlsplit(os.environ["BOOKSHOP_DATABASE_URL"])
_query = dict(parse_qsl(_url.query))

SECRET_KEY = "not secret"  # noqa: S105 - of a test
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(_url.path[1:]),
        "USER": unquote(_url.username or ""),
        "PASSWORD": unquote(_url.password or ""),
        "HOST": _query.pop("host", _url.hostname or ""),
        "PORT": _query.pop("port", _url.port or ""),
        "OPTIONS": _query,
        "TEST": {"NAME": os.environ.get("BOOKSHOP_TEST_DATABASE")},
    },
    "notes": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
INSTALLED_APPS = ["stepwell.contrib.django", "bookshop"]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STEPWELL = {"MACHINES": ["bookshop.posting.post_parcel"], "QUEUES": {"default": 10, "mail": 2}}
TASKS = {
    "default": {"BACKEND": "stepwell.contrib.django.tasks.StepwellBackend", "QUEUES": ["default", "mail"]},
    "patient": {"BACKEND": "stepwell.contrib.django.tasks.StepwellBackend", "OPTIONS": {"max_attempts": 3}},
}
