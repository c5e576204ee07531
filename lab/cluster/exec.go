package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
	"github.com/fairway-net/fairway/lab/toolbox"
)

// Exited reports a command that ran in the lab and ended with a status other than 0. The command itself has printed the
// reason.
type Exited struct{ Status int }

func (e Exited) Error() string { return fmt.Sprintf("exit status %d", e.Status) }

// OnNode runs a command on a node, named "2" or "node-2", with the caller's standard streams. If the command fails, the
// error is an Exited.
func (l Lab) OnNode(name string, argv []string) error {
	state, err := l.load()
	if err != nil {
		return err
	}
	n, err := state.node(name)
	if err != nil {
		return err
	}
	init := state.process(fabric.NodeName(n))
	if !init.Alive() {
		return l.broken(fabric.NodeName(n))
	}
	if err := os.Setenv("PATH", toolbox.Bin+":"+os.Getenv("PATH")); err != nil {
		return fmt.Errorf("set PATH: %w", err)
	}
	return run(argv, func(cmd *exec.Cmd) error { return node.Run(init.PID, cmd) })
}

// Shell opens a shell on a node, the client, the router or the edge. The prompt shows the machine's name.
func (l Lab) Shell(where string) error {
	prompt := where
	if n, err := nodeNumber(where); err == nil {
		prompt = fabric.NodeName(n)
	}
	if err := os.Setenv("PS1", l.id()+" "+prompt+":\\w\\$ "); err != nil {
		return fmt.Errorf("set prompt: %w", err)
	}
	shell := []string{"bash", "--norc", "--noprofile"}
	switch where {
	case fabric.Client:
		return l.OnClient(shell)
	case fabric.Router, fabric.Edge:
		return l.OnFront(where, shell)
	}
	return l.OnNode(where, shell)
}

// NodeNames lists the names of the lab's nodes. Without a lab the list is empty.
func (l Lab) NodeNames() []string {
	s, err := l.load()
	if err != nil {
		return nil
	}
	var names []string
	for _, n := range s.nodes() {
		names = append(names, fabric.NodeName(n))
	}
	return names
}

// OnClient runs a command on the client outside the cluster, in the same way as OnNode.
func (l Lab) OnClient(argv []string) error { return l.inside(fabric.Client, argv) }

// inside runs a command in a network namespace of the lab.
func (l Lab) inside(namespace string, argv []string) error {
	if _, err := l.load(); err != nil {
		return err
	}
	return run(argv, func(cmd *exec.Cmd) error {
		return l.fabric().Do(namespace, cmd.Run)
	})
}

// run runs a command with the help of start. Interrupting keys go to the command, which shares the terminal. This
// process continues, so that it can report the command's status.
func run(argv []string, start func(*exec.Cmd) error) error {
	keys := make(chan os.Signal, 1)
	signal.Notify(keys, unix.SIGINT, unix.SIGQUIT)
	defer signal.Stop(keys)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := start(cmd)
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return Exited{Status: max(ended.ExitCode(), 1)} // -1 means that a signal ended it
	}
	return err
}
