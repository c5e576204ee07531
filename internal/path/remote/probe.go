package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/path/trace"
)

// A Transport runs Serve on a node, with these streams, and returns when Serve has ended. It ends soon after ctx.
type Transport func(ctx context.Context, node string, in io.Reader, out io.Writer) error

// The bounds of a probe.
const (
	// ArmLimit is how long the nodes have to arm. A node that needs longer is not watched.
	ArmLimit = 8 * time.Second
	// maxOutput bounds the output of one node.
	maxOutput = 32 << 20
	// answerTime is how long the answer of a UDP server or the end of a handshake may take to cross the last node.
	answerTime = 20 * time.Millisecond
)

// A Plan is one probe.
type Plan struct {
	Orders    []trace.Order // one for each node that can be on the way
	Transport Transport
	// Send sends the probe if no order does, for example from this machine. Nil: no probe is sent, and the nodes watch
	// live traffic until ctx ends or a node's order does.
	Send func(ctx context.Context) trace.Heard
	// Seen is called for each observation as it arrives, by one goroutine a node. It may be nil.
	Seen func(trace.Observation)
}

// A Result is what the nodes saw.
type Result struct {
	trace.Record
	Armed  []trace.Armed
	Done   []trace.Done
	Errors map[string]error // of the nodes that were not watched, or whose output was cut off
}

// Probe arms all nodes, has the probe sent, and collects what the nodes saw. It returns an error only if no node could be
// watched.
func Probe(ctx context.Context, p Plan) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	var nodes []*remoteNode
	for _, o := range p.Orders {
		n := newNode(o)
		n.seen = p.Seen
		nodes = append(nodes, n)
		running.Go(func() { n.run(ctx, p.Transport) })
	}
	waitFor(ctx, nodes, ArmLimit, func(n *remoteNode) <-chan struct{} { return n.armed })
	armed := slices.DeleteFunc(slices.Clone(nodes), func(n *remoteNode) bool { return !n.isArmed() })
	if len(armed) == 0 {
		cancel()
		running.Wait()
		return Result{}, fmt.Errorf("no node can be watched: %w", joined(nodes))
	}
	heard := p.send(ctx, armed)
	waitAnswer(ctx)
	for _, n := range nodes {
		running.Go(func() {
			if n.isArmed() {
				n.tell(commandStop)
			}
			_ = n.writer.Close() // never fails
		})
	}
	waitFor(ctx, armed, stopLimit, func(n *remoteNode) <-chan struct{} { return n.ended })
	cancel()
	running.Wait()
	return collect(p, nodes, heard), nil
}

// send has the probe sent, and returns what its socket heard.
func (p Plan) send(ctx context.Context, armed []*remoteNode) trace.Heard {
	for _, n := range armed {
		if n.order.Send == nil {
			continue
		}
		go n.tell(commandSend) // ends when the node reads it, or has ended
		select {
		case h := <-n.heard:
			return h
		case <-n.ended:
			return trace.Heard{Outcome: trace.Failed, Error: fmt.Sprintf("the sender's node ended: %v", n.err)}
		case <-ctx.Done():
			return trace.Heard{Outcome: trace.Failed, Error: context.Cause(ctx).Error()}
		}
	}
	if p.Send != nil {
		return p.Send(ctx)
	}
	if slices.ContainsFunc(p.Orders, func(o trace.Order) bool { return o.Send != nil }) {
		return trace.Heard{Outcome: trace.Failed, Error: "the sender's node could not be watched, so nothing was sent"}
	}
	select { // live traffic
	case <-armed[0].ended:
	case <-ctx.Done():
	}
	return trace.Heard{}
}

// waitAnswer waits until the last packets have crossed the nodes.
func waitAnswer(ctx context.Context) {
	t := time.NewTimer(answerTime)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// waitFor waits until a channel of each node is closed, the node has ended, or the time is up.
func waitFor(ctx context.Context, nodes []*remoteNode, limit time.Duration, channel func(*remoteNode) <-chan struct{}) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for _, n := range nodes {
		select {
		case <-channel(n):
		case <-n.ended:
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func joined(nodes []*remoteNode) error {
	var all []error
	for _, n := range nodes {
		if err := n.failure(); err != nil {
			all = append(all, fmt.Errorf("%s: %w", n.order.Node, err))
		}
	}
	return errors.Join(all...)
}

// collect makes the result of the nodes' output.
func collect(p Plan, nodes []*remoteNode, heard trace.Heard) Result {
	r := Result{Errors: map[string]error{}}
	r.Heard = heard
	for _, n := range nodes {
		r.To, r.Endpoints, r.Relayed = n.order.To, n.order.Endpoints, n.order.Relayed
		if n.order.Send != nil {
			r.Sender = n.order.Node
		}
		if err := n.failure(); err != nil {
			r.Errors[n.order.Node] = err
		}
		if !n.isArmed() {
			r.NotWatched = append(r.NotWatched, n.order.Node)
			continue
		}
		r.Watched = append(r.Watched, n.order.Node)
		r.Armed, r.Done = append(r.Armed, n.about), append(r.Done, n.done)
		r.Observations = append(r.Observations, n.observations...)
	}
	return r
}

// A remoteNode is one node of a probe. Its fields below ended are written before ended is closed.
type remoteNode struct {
	order  trace.Order
	in     *io.PipeReader
	writer *io.PipeWriter
	armed  chan struct{}
	heard  chan trace.Heard
	ended  chan struct{}
	seen   func(trace.Observation)

	about        trace.Armed
	done         trace.Done
	observations []trace.Observation
	err          error
}

func newNode(o trace.Order) *remoteNode {
	n := &remoteNode{order: o, armed: make(chan struct{}), heard: make(chan trace.Heard, 1), ended: make(chan struct{})}
	n.in, n.writer = io.Pipe()
	return n
}

// run runs the transport and reads its output.
func (n *remoteNode) run(ctx context.Context, t Transport) {
	defer close(n.ended)
	order, err := json.Marshal(n.order)
	if err != nil {
		n.err = err
		return
	}
	out, output := io.Pipe()
	ran := make(chan error, 1)
	go func() {
		err := t(ctx, n.order.Node, io.MultiReader(bytes.NewReader(append(order, '\n')), n.in), output)
		_ = output.CloseWithError(err) // never fails; nil is the end
		_ = n.in.Close()               // a writer must not wait for a node that has ended
		ran <- err
	}()
	n.read(io.LimitReader(out, maxOutput))
	_ = out.Close() // the node must not wait for a reader
	if err := <-ran; err != nil && n.done.Node == "" {
		n.err = errors.Join(n.err, err)
	}
}

// read reads lines until the end. Whatever a node says, it says it of itself.
func (n *remoteNode) read(out io.Reader) {
	for d := json.NewDecoder(out); ; {
		var l trace.Line
		if err := d.Decode(&l); err != nil {
			if n.done.Node == "" && !errors.Is(err, io.EOF) {
				n.err = fmt.Errorf("read the output of the node: %w", err)
			}
			return
		}
		switch {
		case l.Armed != nil && !n.isArmed():
			n.about = *l.Armed
			n.about.Node = n.order.Node
			close(n.armed)
		case l.Heard != nil:
			select {
			case n.heard <- *l.Heard:
			default: // it was asked once
			}
		case l.Observation != nil:
			l.Observation.Node = n.order.Node
			n.observations = append(n.observations, *l.Observation)
			if n.seen != nil {
				n.seen(*l.Observation)
			}
		case l.Done != nil:
			n.done = *l.Done
			n.done.Node = n.order.Node
			if l.Done.Error != "" {
				n.err = fmt.Errorf("the node cannot watch: %s", l.Done.Error)
			}
		}
	}
}

func (n *remoteNode) isArmed() bool {
	select {
	case <-n.armed:
		return true
	default:
		return false
	}
}

// failure returns the node's error. It is known only after the node's end.
func (n *remoteNode) failure() error {
	select {
	case <-n.ended:
		if n.err == nil && n.done.Node == "" {
			return errors.New("the output was cut off")
		}
		return n.err
	default:
		return fmt.Errorf("no answer within %v", ArmLimit)
	}
}

// tell sends a command.
func (n *remoteNode) tell(command string) { _, _ = io.WriteString(n.writer, command+"\n") }
