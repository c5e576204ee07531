// Command fairway is the Service path of a Kubernetes cluster in one program:
// the service proxy of a node, the cluster's DNS, and the tools that show what
// they did. The pods' network plugin, which a container runtime starts as root
// for each pod, is a program of its own: fairway-cni.
//
// main only passes arguments, output and signals to run, so
// that every command can be tested in process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/config"
	"github.com/fairway-net/fairway/internal/oneline"
)

// env is what the commands may use of the process's environment.
type env struct {
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	program string // the name that the program was called by; empty: fairway
}

// plugin reports whether kubectl started this program, as kubectl-fairway.
func (e env) plugin() bool { return strings.HasPrefix(e.program, "kubectl-") }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, program: filepath.Base(os.Args[0])}, os.Args[1:])
	stop()
	os.Exit(code)
}

// exitError ends the program with a status of its own and no further message.
// `fairway diff` uses it: 1 means "there is a difference", as in diff(1).
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// failed ends the program with a status of its own: in commands of which 1 is an answer, an
// error is 2, as with diff(1).
type failed struct {
	error
	status int
}

func (f failed) Unwrap() error { return f.error }

// errorStatus makes errors of a command end the program with a status.
func errorStatus(status int, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		err := run(c, args)
		var code exitError
		if err == nil || errors.As(err, &code) {
			return err
		}
		return failed{err, status}
	}
}

// run executes one command line and returns the exit status. An error is printed once,
// here: a line with what is wrong, and a line with what to do.
func run(ctx context.Context, e env, args []string) int {
	if strings.HasPrefix(e.program, "kubectl_complete-") { // how kubectl asks what may follow `kubectl fairway`
		e.program, args = strings.Replace(e.program, "kubectl_complete-", "kubectl-", 1), append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	root := newRoot(e)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	what, hint := oneline.Hint(oneline.Error(err).Error())
	fmt.Fprintf(e.stderr, "error: %s\n", what)
	if hint != "" {
		fmt.Fprintf(e.stderr, "hint: %s\n", hint)
	}
	var f failed
	if errors.As(err, &f) {
		return f.status
	}
	return 1
}

// newLog returns a logger that writes an error with several lines as one.
func newLog(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, logOptions(level)))
}

// newAgentLog is newLog in the format that the configuration asks for.
func newAgentLog(w io.Writer, cfg *config.Config) *slog.Logger {
	if !cfg.LogJSON {
		return newLog(w, cfg.LogLevel)
	}
	return newJSONLog(w, cfg.LogLevel, "agent")
}

// newJSONLog has the part of Fairway that logs in each line, because lines of all parts end in
// one place.
func newJSONLog(w io.Writer, level slog.Leveler, component string) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, logOptions(level))).With("component", component)
}

func logOptions(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(oneline.Error(err).Error())
		}
		return a
	}}
}

// newRoot builds the command tree, one file for each command.
func newRoot(e env) *cobra.Command {
	root := &cobra.Command{
		Use:   "fairway",
		Short: "The Kubernetes service network: service proxy, cluster DNS, pod network",
		// Errors are printed by run, without the usage text: the line that
		// names the fault must not drown in forty lines of flags.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	if e.plugin() {
		name := "kubectl " + strings.ReplaceAll(strings.TrimPrefix(e.program, "kubectl-"), "_", "-")
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	}
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(usage)
	root.SuggestionsMinimumDistance = 2
	root.AddCommand(
		newAgent(e),
		newController(e),
		newDNS(e),
		newDiff(e),
		newDump(e),
		newDoctor(e),
		newDrain(e),
		newEdge(e),
		newExplain(e),
		newInstall(e),
		newRollback(e),
		newUninstall(e),
		newUpgrade(e),
		newSpeaker(e),
		newPolicy(e),
		newStatus(e),
		newVersion(e),
	)
	return root
}
