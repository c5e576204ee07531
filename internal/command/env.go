// Package command has what the commands of fairway share: what they may use of the process, exit
// status, flags of a connection and of the log, completion, a port for /metrics. Each program and
// each group of tools is a package below this one: its flags, and its parts joined by hand from top
// to bottom. What the parts do, packages outside of here know. It promises that no command reaches
// past its Env for input, output or the program's version, so that all can be tested in process.
package command

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Env is what the commands may use of the process's environment.
type Env struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Program string // the name that the program was called by; empty: fairway
	Version string
}

// Plugin reports whether kubectl started this program, as kubectl-fairway.
func (e Env) Plugin() bool { return strings.HasPrefix(e.Program, "kubectl-") }

// UserAgent names the program to the API server, as a part of Fairway; empty: the agent and its tools.
func (e Env) UserAgent(part string) string {
	if part != "" {
		part = "-" + part
	}
	return "fairway" + part + "/" + e.Version
}

// ExitError ends the program with a status of its own and no further message.
// `fairway diff` uses it: 1 means "there is a difference", as in diff(1).
type ExitError int

func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Failed ends the program with a status of its own: in commands of which 1 is an answer, an
// error is 2, as with diff(1).
type Failed struct {
	error
	Status int
}

func (f Failed) Unwrap() error { return f.error }

// ErrorStatus makes errors of a command end the program with a status.
func ErrorStatus(status int, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		err := run(c, args)
		var code ExitError
		if err == nil || errors.As(err, &code) {
			return err
		}
		return Failed{err, status}
	}
}

// Complete offers values of a flag.
func Complete(c *cobra.Command, flag string, values ...string) {
	offer := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	if err := c.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // there is no such flag
	}
}
