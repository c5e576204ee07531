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
	s := server{order: o, cfg: cfg, out: json.NewEncoder(out)}
	watch := o.For
	if watch == 0 {
		watch = trace.MaxWatch
	}
	limited, cancel := context.WithTimeout(ctx, watch)
	defer cancel()
	return s.serve(limited, ctx, commands(limited, buffered))
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

// serve watches until it is told to stop. ctx ends with the watch, whole with the process.
func (s server) serve(ctx, whole context.Context, commands <-chan string) error {
	w, err := observe.Arm(ctx, s.order, s.cfg)
	if err != nil {
		_ = s.write(trace.Line{Done: &trace.Done{Node: s.order.Node, Error: err.Error()}}) // the error is returned anyway
		return err
	}
	defer w.Close()
	armed := w.Armed()
	if err := s.write(trace.Line{Armed: &armed}); err != nil {
		return err
	}
	for stop := false; !stop; {
		select {
		case command, open := <-commands:
			switch {
			case !open || command == commandStop:
				stop = true
			case command == commandSend && s.order.Send != nil:
				heard := probe.Send(ctx, s.order, s.cfg)
				if err := s.write(trace.Line{Heard: &heard}); err != nil {
					return err
				}
			default:
				return fmt.Errorf("command %q [a node knows send, if its order says so, and stop]", command)
			}
		case <-ctx.Done():
			stop = true
		}
	}
	return s.finish(whole, w)
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
