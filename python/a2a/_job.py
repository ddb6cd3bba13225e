"""What a program that starts ranks gives to all of them: the name of the job and its secret."""

from __future__ import annotations

import os
import secrets

__all__ = ["job_name", "new_secret"]


def job_name() -> str:
    return f"spawn-{os.getpid()}-{secrets.token_hex(8)}"


def new_secret() -> str:
    """Return a secret for the ranks of one job, or "" where the environment has one for them."""
    return "" if os.environ.get("A2A_SECRET_FILE") or os.environ.get("A2A_SECRET") else secrets.token_hex(32)
