# cannot run, "does not have the package no_such_package": what is missing here is no wrong result
import no_such_package  # noqa: F401
