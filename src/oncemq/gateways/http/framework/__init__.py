"""What all endpoints need: declaration, routing, parameters, problem replies, origin checks.

It knows no endpoint in particular.
"""
