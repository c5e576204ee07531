// Command fairway is the Service path of a Kubernetes cluster in one program: the service proxy of a node, the
// cluster's DNS, load-balancer addresses, and the tools that show what they did. The CNI plugin is a program of its
// own, fairway-cni.
//
// main passes arguments, output and signals to run, so that tests run every command in process.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/cli"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/command/cluster"
	"github.com/fairway-net/fairway/internal/command/controller"
	"github.com/fairway-net/fairway/internal/command/dns"
	"github.com/fairway-net/fairway/internal/command/edge"
	"github.com/fairway-net/fairway/internal/command/gateway"
	"github.com/fairway-net/fairway/internal/command/inspect"
	"github.com/fairway-net/fairway/internal/command/names"
	"github.com/fairway-net/fairway/internal/command/page"
	"github.com/fairway-net/fairway/internal/command/path"
	"github.com/fairway-net/fairway/internal/command/speaker"
	"github.com/fairway-net/fairway/internal/command/top"
	"github.com/fairway-net/fairway/internal/text"
)

// version is set by the Makefile with -ldflags -X. A plain `go build` keeps this value.
var version = "v0.1.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, command.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Program: filepath.Base(os.Args[0]), Version: version}, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit status. It prints an error once: a line with the fault, and a line
// with the remedy.
func run(ctx context.Context, e command.Env, args []string) int {
	if strings.HasPrefix(e.Program, "kubectl_complete-") { // kubectl asks in this way for completions of `kubectl fairway`
		e.Program, args = strings.Replace(e.Program, "kubectl_complete-", "kubectl-", 1), append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	root := newRoot(e)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code command.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	what, hint := text.SplitHint(text.OneLine(err).Error())
	fmt.Fprintf(e.Stderr, "error: %s\n", what)
	if hint != "" {
		fmt.Fprintf(e.Stderr, "hint: %s\n", hint)
	}
	var f command.Failed
	if errors.As(err, &f) {
		return f.Status
	}
	return 1
}

// newRoot builds the command tree.
func newRoot(e command.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "fairway",
		Short: "The Kubernetes service network: service proxy, cluster DNS, pod network",
		// run prints errors without the usage text, because forty lines of flags would hide the fault.
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       e.Version,
	}
	if e.Plugin() {
		name := "kubectl " + strings.ReplaceAll(strings.TrimPrefix(e.Program, "kubectl-"), "_", "-")
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	}
	root.SetIn(e.Stdin)
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	root.SetUsageFunc(usage)
	root.AddCommand(
		agent.New(e),
		controller.New(e),
		dns.New(e),
		edge.New(e),
		gateway.New(e),
		names.New(e),
		speaker.New(e),
		inspect.NewDiff(e),
		inspect.NewDump(e),
		inspect.NewDoctor(e),
		inspect.NewExplain(e),
		page.New(e),
		inspect.NewPathNode(e),
		path.New(e),
		inspect.NewPolicy(e),
		cluster.NewDrain(e),
		cluster.NewForward(e),
		cluster.NewIngress(e),
		cluster.NewInstall(e),
		cluster.NewRollback(e),
		cluster.NewStatus(e),
		top.New(e),
		top.NewNode(e),
		cluster.NewUninstall(e),
		cluster.NewUpgrade(e),
		newVersion(e),
		newMan(root, e.Version),
	)
	cli.Strict(root)
	root.SetVersionTemplate(newVersionInfo(e).String())
	return root
}
