"""Tests of ``a2a.torch``. (A folder called torch would pass for the framework where that is not installed.)"""
