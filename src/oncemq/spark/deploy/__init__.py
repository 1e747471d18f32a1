"""Renders what starts a pipeline elsewhere: a spark-submit script, or a Kubernetes manifest.

See `oncemq pipeline deploy`, docs/howto/spark-clusters.md.

    declared       a pipeline's file, with the variables that it needs
    spark_submit   → a shell script
    kubernetes     → a manifest
"""

from oncemq.spark.deploy.declared import DeclaredPipeline as DeclaredPipeline
from oncemq.spark.deploy.declared import read_declared as read_declared
from oncemq.spark.deploy.kubernetes import KubernetesOptions as KubernetesOptions
from oncemq.spark.deploy.kubernetes import render_manifest as render_manifest
from oncemq.spark.deploy.kubernetes import resource_name as resource_name
from oncemq.spark.deploy.spark_submit import SubmitOptions as SubmitOptions
from oncemq.spark.deploy.spark_submit import render_script as render_script

__all__ = [
    "DeclaredPipeline",
    "KubernetesOptions",
    "SubmitOptions",
    "read_declared",
    "render_manifest",
    "render_script",
    "resource_name",
]
