package top

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow/top"
)

const (
	// maxNodes bounds the nodes that one person asks: each costs the API server a stream.
	maxNodes = 64
	// maxAnswer bounds one line of a node's output.
	maxAnswer = 4 << 20
	// answerLimit is how long a node may take for one answer.
	answerLimit = 15 * time.Second
	// retryAfter is the pause after a node's stream has failed.
	retryAfter = 3 * time.Second
)

// An answer is a sample of a node or of a gateway's pod, or the error in its place.
type answer struct {
	node        string
	at          time.Time
	sample      *top.Sample
	endpointsOf api.Name
	routes      *top.RouteSample
	err         error
}

// A transport runs top-node on a node, with these streams, and returns when it has ended. It ends soon after ctx.
type transport func(ctx context.Context, node string, in io.Reader, out io.Writer) error

// An asker asks the nodes for samples, each at its own pace.
type asker struct {
	// talk asks one node until ctx ends or it fails.
	talk     func(ctx context.Context, node string) error
	interval time.Duration
	// endpointsOf is the Service whose endpoints the next question asks for.
	endpointsOf atomic.Pointer[api.Name]
	answers     chan answer
}

func newAsker(t transport, interval time.Duration) *asker {
	a := &asker{interval: interval, answers: make(chan answer)}
	a.talk = func(ctx context.Context, node string) error { return a.converseBy(ctx, t, node) }
	a.follow(api.Name{})
	return a
}

// follow makes the next questions ask for the endpoints of a Service. The zero Name asks for none.
func (a *asker) follow(service api.Name) { a.endpointsOf.Store(&service) }

// run asks the nodes until ctx ends.
func (a *asker) run(ctx context.Context, nodes []string) {
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			for ctx.Err() == nil {
				err := a.talk(ctx, n)
				if ctx.Err() != nil {
					return
				}
				a.tell(ctx, answer{node: n, at: time.Now(), err: err})
				select {
				case <-time.After(retryAfter):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
}

func (a *asker) tell(ctx context.Context, one answer) {
	select {
	case a.answers <- one:
	case <-ctx.Done():
	}
}

// converseBy asks one node through a transport, until its stream ends.
func (a *asker) converseBy(ctx context.Context, t transport, node string) error {
	ctx, cancel := context.WithCancel(ctx)
	in, questions := io.Pipe()
	output, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := t(ctx, node, in, out)
		_ = out.CloseWithError(err) // never fails; nil is the end
		_ = in.Close()              // a writer must not wait for a node that has ended
		ended <- err
	}()
	err := a.converse(ctx, node, questions, output)
	cancel()
	_ = questions.Close() // the node ends with its input
	_ = output.Close()    // the node must not wait for a reader
	if failed := <-ended; failed != nil && !errors.Is(failed, context.Canceled) {
		return failed
	}
	return err
}

// converse asks at each interval, and tells the answers.
func (a *asker) converse(ctx context.Context, node string, questions io.WriteCloser, output io.ReadCloser) error {
	lines := bufio.NewReaderSize(output, 64<<10)
	ticks := time.NewTicker(a.interval)
	defer ticks.Stop()
	for {
		of := *a.endpointsOf.Load()
		line := question
		if of != (api.Name{}) {
			line += " " + of.String()
		}
		late := time.AfterFunc(answerLimit, func() {
			_ = questions.Close()
			_ = output.Close()
		})
		_, err := io.WriteString(questions, line+"\n")
		var text []byte
		if err == nil {
			text, err = readLine(lines)
		}
		if !late.Stop() {
			return fmt.Errorf("no answer within %v", answerLimit)
		}
		if err != nil {
			return fmt.Errorf("read the node's answer: %w", err)
		}
		var s top.Sample
		if err := json.Unmarshal(text, &s); err != nil {
			return fmt.Errorf("read the node's answer: %w", err)
		}
		a.tell(ctx, answer{node: node, at: time.Now(), sample: &s, endpointsOf: of})
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readLine reads one line of bounded length.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, more, err := r.ReadLine()
		if err != nil {
			return nil, err
		}
		if len(line)+len(part) > maxAnswer {
			return nil, fmt.Errorf("the line is longer than %d bytes", maxAnswer)
		}
		if line = append(line, part...); !more {
			return line, nil
		}
	}
}
