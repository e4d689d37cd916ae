"""`data.source: stream`: rows of text that is read and tokenized while a run trains.

Files are cut into blocks (`files.py`). Processes turn blocks into tokens (`workers.py`, `worker.py`, `block.py`). Each
of a fixed number of lanes reads its sequence of blocks and cuts it into rows (`lanes.py`); an example is a row of a
lane (`rows.py`). A checkpoint has the position of each lane.
"""
