package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"

	"github.com/fairway-net/fairway/lab/cluster"
)

// kubectlCommand runs kubectl. unhandle removes this program's signal handlers first, because kubectl handles signals
// itself or leaves them to the system.
func kubectlCommand(lab *cluster.Lab, unhandle func()) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ARGS…",
		Short:              "kubectl, speaking to this cluster",
		Example:            "  fairway-lab kubectl get pods -A -o wide",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			unhandle()
			os.Exit(kubectl(*lab, args, ""))
			return nil
		},
	}
}

// kubectl runs upstream's kubectl in this process, as if called by its name. An empty kubeconfig means the lab's
// kubeconfig, unless the arguments name another cluster.
func kubectl(lab cluster.Lab, args []string, kubeconfig string) int {
	if kubeconfig == "" {
		// Without a lab, kubectl would try localhost:8080 and print many errors.
		if !offline(args) && !elsewhere(args) {
			err := lab.Check()
			if err == nil {
				err = cluster.CheckRoot()
			}
			if err != nil {
				printError(os.Stderr, err)
				return 1
			}
		}
		kubeconfig = lab.Kubeconfig()
	}
	if err := os.Setenv("KUBECONFIG", kubeconfig); err != nil {
		printError(os.Stderr, err)
		return 1
	}
	os.Args = append([]string{"kubectl"}, args...)
	_, _ = logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args)) // as upstream's main: a later step reports a wrong -v
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints the error and exits with its status
	}
	return 0
}

// offline reports whether the command works without a cluster.
func offline(args []string) bool {
	return len(args) == 0 || slices.Contains([]string{"help", "--help", "-h", "completion", "kustomize", "version"}, args[0])
}

// elsewhere reports whether the arguments select a cluster by a kubeconfig or an address.
func elsewhere(args []string) bool {
	for _, arg := range args {
		flag, _, _ := strings.Cut(arg, "=")
		switch flag {
		case "--": // the arguments after it belong to another command
			return false
		case "--kubeconfig", "--server", "-s":
			return true
		}
	}
	return false
}
