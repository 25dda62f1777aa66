"""The sections of the report about the depth that units were given."""
