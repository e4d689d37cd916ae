"""How a layer multiplies: plain products (`plain.py`), quantized ones, and taps that split a backward."""
