"""Putting messages: encoding, batch buffers, receipts."""
