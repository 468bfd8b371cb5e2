"""What the shop stores."""

from django.db import models


class Order(models.Model):
    title = models.CharField(max_length=100)
    step = models.CharField(max_length=20, default="ordered")
