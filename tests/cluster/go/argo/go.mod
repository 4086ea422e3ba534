// Which Argo the cluster of the tests runs: rig.argo_builds builds its commands in a copy of this module, whose own
// go.mod and go.sum say the rest.
module rerail.dev/tests/cluster/argo

go 1.26.0

require github.com/argoproj/argo-workflows/v4 v4.0.5
