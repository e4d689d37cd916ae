"""Other forms of the residual stream: several streams (AltUp), and a learned residual beside a mixer (LAuReL)."""
