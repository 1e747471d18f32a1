"""Figures that need a broker in a certain state: many topics, many sessions, a long history, housekeeping."""
