"""Files in object stores (`s3://`, `gs://`, `hf://`): copied to a local cache to be read, and uploaded once written.

All other code sees paths. `store` has the calls to a store, which are tried again; `cache` the local copies; `upload`
folders that are complete in the store once their last file is there.
"""
