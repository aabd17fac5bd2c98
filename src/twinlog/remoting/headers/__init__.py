"""Typed headers: the ext fields of each request and response, under RocketMQ's class names.

Attributes are snake_case, wire names RocketMQ's. A field without a default is required (Java's
not-null); None is not sent; a plain bool or number is always sent. Fields that only newer or other
clients send and that change nothing here are not declared: what is not declared is ignored.
"""

from __future__ import annotations
