"""A job that the settings name."""

from stepwell import job


@job
def post_parcel(order: int) -> str:
    return f"posted {order}"
