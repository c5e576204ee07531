package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/fairway-net/fairway/internal/text"
)

// client is the pod that sends requests inside the cluster.
const client = "demo-client"

// demo holds the state that the steps share.
type demo struct {
	lab       string // path of fairway-lab
	manifests string
	leave     bool // the lab stays up after the demo
	out       io.Writer
}

// mismatch is an expectation that was not met.
type mismatch struct{ want, got string }

func (m mismatch) Error() string {
	return fmt.Sprintf("expected %s\nsaw      %s", m.want, indent(m.got, "         "))
}

// ok prints a fact that held.
func (d *demo) ok(format string, args ...any) { fmt.Fprintf(d.out, "   ✓ "+format+"\n", args...) }

// command returns one call of the lab's program. When the step's time is up it is interrupted, not killed, so that `up`
// and a remote shell can end in order.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.lab, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// show prints a command as a person types it, runs it and prints its output. It returns the standard output.
func (d *demo) show(ctx context.Context, args ...string) (string, error) {
	fmt.Fprintf(d.out, "   $ %s\n", typed(d.lab, args))
	shown := &indenter{to: d.out, prefix: []byte("     "), fresh: true}
	var stdout, said bytes.Buffer
	both := io.MultiWriter(shown, &said)
	cmd := d.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, both), both
	err := cmd.Run()
	shown.end()
	if err != nil {
		return stdout.String(), d.failed(args, err, said.String())
	}
	return stdout.String(), nil
}

// failed returns a command's error with the last line of its output, which has the reason.
func (d *demo) failed(args []string, err error, said string) error {
	if why := text.LastLine(said); why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	return mismatch{want: fmt.Sprintf("`%s` to succeed", typed(d.lab, args)), got: err.Error()}
}

// quiet runs a command without printing it.
func (d *demo) quiet(ctx context.Context, args ...string) (string, error) {
	out, err := d.command(ctx, args...).Output()
	if err != nil {
		said := ""
		if exit, ok := err.(*exec.ExitError); ok {
			said = string(exit.Stderr)
		}
		return "", d.failed(args, err, said)
	}
	return string(out), nil
}

// kubectl shows a kubectl command.
func (d *demo) kubectl(ctx context.Context, args ...string) (string, error) {
	return d.show(ctx, append([]string{"kubectl"}, args...)...)
}

// inPod shows a command inside the client pod.
func (d *demo) inPod(ctx context.Context, args ...string) (string, error) {
	return d.kubectl(ctx, append([]string{"exec", client, "--"}, args...)...)
}

// get reads objects into a value of their JSON, without printing.
func (d *demo) get(ctx context.Context, into any, args ...string) error {
	out, err := d.quiet(ctx, append([]string{"kubectl", "get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("kubectl get %v: %w", args, err)
	}
	return nil
}

// until repeats ask until it returns yes. When time is up it reports the last answer. An error counts as no, because a
// changing cluster causes errors.
func until(ctx context.Context, want string, ask func() (seen string, yes bool, err error)) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, yes, err := ask()
		if yes && err == nil {
			return nil
		}
		if err != nil {
			seen = err.Error()
		}
		select {
		case <-ctx.Done():
			return mismatch{want, seen}
		case <-tick.C:
		}
	}
}

// typed returns a command as a shell would take it.
func typed(program string, args []string) string {
	words := []string{program}
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " '\"$`\\&|;<>()[]{}*?!#~\n") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// indent indents all lines except the first.
func indent(data, by string) string {
	return strings.ReplaceAll(strings.TrimSpace(data), "\n", "\n"+by)
}

// indenter prefixes each line.
type indenter struct {
	to     io.Writer
	prefix []byte
	fresh  bool // the next byte starts a line
}

func (w *indenter) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if w.fresh && len(line) > 1 {
			w.to.Write(w.prefix)
		}
		if _, err := w.to.Write(line); err != nil {
			return 0, err
		}
		w.fresh = line[len(line)-1] == '\n'
	}
	return len(p), nil
}

// end finishes an open line.
func (w *indenter) end() {
	if !w.fresh {
		io.WriteString(w.to, "\n")
		w.fresh = true
	}
}
