"""The processes of a job: how they find, join and watch each other, and how a lost one is reported."""
