"""Hosts: executors on other machines, whose agents start and watch them for the core."""
