// Package command has the parts that all commands of fairway share: the process environment, exit statuses, connection
// and log flags, completion, the metrics server. Each program and each group of tools is a package below. No command
// reaches past its Env for input, output or version, so tests run commands in process.
package command

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Env is the process environment of a command.
type Env struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Program string // the program's name as it was called; empty: fairway
	Version string
}

// Plugin reports whether kubectl started this program, as kubectl-fairway.
func (e Env) Plugin() bool { return strings.HasPrefix(e.Program, "kubectl-") }

// UserAgent names a part of Fairway to the API server. An empty part means the agent and its tools.
func (e Env) UserAgent(part string) string {
	if part != "" {
		part = "-" + part
	}
	return "fairway" + part + "/" + e.Version
}

// ExitError ends the program with a status of its own and no message. `fairway diff` returns 1 for "there is a
// difference", as diff(1) does.
type ExitError int

func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Failed ends the program with the status of an error. Commands that use 1 as an answer use 2 for errors, as diff(1)
// does.
type Failed struct {
	error
	Status int
}

func (f Failed) Unwrap() error { return f.error }

// ErrorStatus makes a command's errors end the program with a status.
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

// Complete offers fixed values of a flag.
func Complete(c *cobra.Command, flag string, values ...string) {
	offer := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	if err := c.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // the flag does not exist
	}
}
