package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"

	"github.com/fairway-net/fairway/lab/cluster"
)

func kubectlCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ARGS…",
		Short:              "kubectl, speaking to this cluster",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			os.Exit(kubectl(*lab, args, ""))
			return nil
		},
	}
}

// kubectl is upstream's, in this process, as if it had been called by its
// name. An empty kubeconfig means the lab's.
func kubectl(lab cluster.Lab, args []string, kubeconfig string) int {
	if kubeconfig == "" {
		kubeconfig = lab.Kubeconfig()
	}
	if err := os.Setenv("KUBECONFIG", kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, "fairway-lab:", err)
		return 1
	}
	os.Args = append([]string{"kubectl"}, args...)
	_, _ = logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args)) // as upstream's main: a wrong -v is told about later
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints it and ends with its status
	}
	return 0
}
