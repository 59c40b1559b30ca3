"""Large values in a bucket: on S3, or on Google's cloud."""
