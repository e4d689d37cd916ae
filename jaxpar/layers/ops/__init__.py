"""How a layer multiplies: plain products (`plain.py`), quantised ones, and taps that split a backward."""
