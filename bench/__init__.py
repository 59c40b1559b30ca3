"""What refold costs, measured: `python -m bench NAME`, one module per benchmark."""
