package enforcer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"github.com/fairway-net/fairway/internal/ipc/listener"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// A request is a request of the plugin. The answer waits until the kernel is written.
type request struct {
	isolate.Request
	done chan error // with room for one
}

// maxContainer is the kept length of a container's ID.
const maxContainer = 12

func (r *request) container() string { return r.Container[:min(len(r.Container), maxContainer)] }

// apply passes a request to the Compiler.
func (e *Enforcer) apply(r request) {
	if r.Command == isolate.Delete {
		var gone []netip.Addr
		table, _ := e.compiler.Compile()
		for a, s := range table.Sandboxes {
			if s.Container == r.container() {
				gone = append(gone, a)
			}
		}
		for _, a := range gone {
			e.compiler.SetSandbox(a, nil)
		}
		return
	}
	namespace, name, _ := strings.Cut(r.Pod, "/")
	s := &networkpolicy.Sandbox{Pod: api.Name{Namespace: namespace, Name: name}, UID: r.UID, Container: r.container()}
	for _, a := range r.Addrs {
		e.compiler.SetSandbox(a, s)
	}
}

// listen opens the socket. Only root can use it, because only root starts plugins.
func (e *Enforcer) listen(ctx context.Context) (net.Listener, error) {
	fail := func(err error) error {
		return fmt.Errorf("open the CNI plugin's socket %s: %w [mount the host's %s into the agent, writable]", e.Socket, err, filepath.Dir(e.Socket))
	}
	if err := os.MkdirAll(filepath.Dir(e.Socket), 0o700); err != nil {
		return nil, fail(err)
	}
	// The socket may be a previous agent's. The node's lock proves that no other agent runs now.
	if err := os.Remove(e.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fail(err)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", e.Socket)
	if err != nil {
		return nil, fail(err)
	}
	if err := os.Chmod(e.Socket, 0o600); err != nil {
		_ = l.Close() // the first error counts
		return nil, fail(err)
	}
	return l, nil
}

// serve answers the plugin until ctx ends.
func (e *Enforcer) serve(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	err := listener.Serve(ctx, l, func(c net.Conn) { wg.Go(func() { e.answer(ctx, c) }) })
	if err != nil {
		return fmt.Errorf("accept a question of the CNI plugin: %w", err)
	}
	return nil
}

func (e *Enforcer) answer(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, isolate.Patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	r := request{done: make(chan error, 1)}
	if err := json.NewDecoder(c).Decode(&r.Request); err != nil {
		return // the client sent no request
	}
	err := e.confirm(ctx, r)
	var answer isolate.Answer
	if err != nil {
		answer.Error = err.Error()
	}
	if err := json.NewEncoder(c).Encode(answer); err != nil {
		e.Log.Warn("the CNI plugin did not wait for its answer; the container runtime will ask again", "pod", r.Pod, "err", err)
	}
}

func (e *Enforcer) confirm(ctx context.Context, r request) error {
	if r.Command != isolate.Add && r.Command != isolate.Delete {
		return fmt.Errorf("command %q is not known [are the plugin and the agent of one release?]", r.Command)
	}
	select {
	case e.requests <- r:
	case <-ctx.Done():
		return errors.New("the lists of NetworkPolicies, namespaces and pods are not in yet [is the API server reached? the agent's log says]")
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return errors.New("the kernel was not written in time")
	}
}
