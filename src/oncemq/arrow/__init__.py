"""Batches and values as Arrow columns, and back. Needs the extra `arrow` (or `spark`).

columns.py         stored batches → the columns of messages
payloads.py        the columns of messages → payloads
typed_columns.py   typed batches → their columns, without a copy
typed_payloads.py  typed columns → payloads
values.py          values in JSON, Avro or Protobuf → typed columns, with the reason for each that does not match
typed_reader.py    stored batches of any kind → the columns of a version of the topic's schema
evolution.py       the columns of one version of a schema → those of another
frames.py          tables of the caller → the columns of a schema
"""
