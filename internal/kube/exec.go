package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"github.com/fairway-net/fairway/internal/text"
)

// agentContainer is the name of the agent's container in deploy/.
const agentContainer = "agent"

// maxErrorText bounds the error output of a command that is kept.
const maxErrorText = 2000

// ErrNoExec is the error of a user who may not run commands in the agents' pods.
var ErrNoExec = errors.New("your user may not create pods/exec in the agents' namespace")

// noExec reports whether the API server refused the right to create pods/exec. What refuses a WebSocket is only text;
// admission refuses with the same status, and for other reasons.
func noExec(err error) bool {
	t := err.Error()
	return strings.Contains(t, "forbidden") && strings.Contains(t, "cannot") && strings.Contains(t, "pods/exec")
}

// Exec runs a command in the agent's container of a node, with these streams, by a WebSocket. It needs the right to create
// pods/exec in the agents' namespace: the person's own, and the API server records it. It ends soon after ctx.
func (a *Agents) Exec(ctx context.Context, p AgentPod, command []string, in io.Reader, out io.Writer) error {
	cfg, err := a.connection.restConfig(serviceAccount)
	if err != nil {
		return err
	}
	request := a.client.CoreV1().RESTClient().Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: agentContainer, Command: command, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(cfg, "GET", request.URL().String())
	if err != nil {
		return fmt.Errorf("run %s in pod %s/%s: %w", command[0], p.Namespace, p.Name, err)
	}
	errs := &limitedText{left: maxErrorText}
	// client-go would log that a command ended before it had read all of its input, as path-node does.
	ctx = klog.NewContext(ctx, logr.Discard())
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs})
	switch {
	case err == nil:
		return nil
	case noExec(err):
		return fmt.Errorf("run %s in pod %s/%s: %w [ask for that right]", command[0], p.Namespace, p.Name, ErrNoExec)
	case errs.Len() > 0:
		return fmt.Errorf("run %s in pod %s/%s: %s", command[0], p.Namespace, p.Name, strings.Join(strings.Fields(errs.String()), " "))
	}
	return fmt.Errorf("run %s in pod %s/%s: %w", command[0], p.Namespace, p.Name, text.RequestError(err))
}

// limitedText keeps the begin of what is written.
type limitedText struct {
	strings.Builder
	left int
}

func (l *limitedText) Write(b []byte) (int, error) {
	keep := b[:min(len(b), l.left)]
	l.left -= len(keep)
	l.Builder.Write(keep)
	return len(b), nil
}
