"""The doors: your transaction, your driver, SQL."""
