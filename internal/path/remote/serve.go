package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/probe"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// The commands that follow the order.
const (
	commandSend = "send"
	commandStop = "stop"
)

// stopLimit bounds the work after the watch: reading rules and state.
const stopLimit = 10 * time.Second

// Serve carries out one order in the network namespace of the calling thread. It reads in to its end in a goroutine of
// its own, which ends when in does.
func Serve(ctx context.Context, in io.Reader, out io.Writer, cfg observe.Config) error {
	buffered := bufio.NewReader(in)
	line, err := readLine(buffered)
	if err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	o, err := trace.ReadOrder(strings.NewReader(line))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the goroutine that reads commands
	s := server{order: o, cfg: cfg, out: json.NewEncoder(out)}
	return s.serve(ctx, commands(ctx, buffered))
}

// maxLine bounds one line of the input.
const maxLine = 64 << 10

func readLine(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for b.Len() < maxLine {
		part, more, err := r.ReadLine()
		if err != nil {
			return "", err
		}
		if b.Write(part); !more {
			return b.String(), nil
		}
	}
	return "", errors.New("the line is too long")
}

// commands returns the lines of the input. The channel is closed at the end of the input.
func commands(ctx context.Context, r *bufio.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for {
			line, err := readLine(r)
			if err != nil {
				return
			}
			select {
			case lines <- strings.TrimSpace(line):
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

type server struct {
	order trace.Order
	cfg   observe.Config
	out   *json.Encoder
}

// serve arms, and watches until it is told to stop, the order's time is up, or ctx ends.
func (s server) serve(ctx context.Context, commands <-chan string) error {
	arming, cancel := context.WithTimeout(ctx, ArmLimit)
	defer cancel()
	w, err := observe.Arm(arming, s.order, s.cfg)
	if err != nil {
		_ = s.write(trace.Line{Done: &trace.Done{Node: s.order.Node, Error: err.Error()}}) // the error is returned anyway
		return err
	}
	defer w.Close()
	armed := w.Armed()
	if err := s.write(trace.Line{Armed: &armed}); err != nil {
		return err
	}
	watch := s.order.For
	if watch == 0 {
		watch = trace.MaxWatch
	}
	watching, cancel := context.WithTimeout(ctx, watch)
	defer cancel()
	for stop := false; !stop; {
		select {
		case command, open := <-commands:
			switch {
			case !open || command == commandStop:
				stop = true
			case command == commandSend && s.order.Send != nil:
				heard := probe.Send(watching, s.order, s.cfg)
				if err := s.write(trace.Line{Heard: &heard}); err != nil {
					return err
				}
			default:
				return fmt.Errorf("command %q [a node knows send, if its order says so, and stop]", command)
			}
		case <-watching.Done():
			stop = true
		}
	}
	return s.finish(ctx, w)
}

func (s server) finish(ctx context.Context, w *observe.Watch) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	all, done := w.Stop(ctx)
	for i := range all {
		if err := s.write(trace.Line{Observation: &all[i]}); err != nil {
			return err
		}
	}
	return s.write(trace.Line{Done: &done})
}

func (s server) write(l trace.Line) error {
	if err := s.out.Encode(l); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
