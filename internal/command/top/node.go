package top

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/top"
	"github.com/fairway-net/fairway/internal/service"
)

const (
	// idleLimit is how long a node waits for the next question. A person's program that has died asks no more.
	idleLimit = 30 * time.Second
	// sampleLimit bounds the reading for one sample.
	sampleLimit = 10 * time.Second
	// rulesAge is how long a node uses the Services that it has read from the kernel.
	rulesAge = 5 * time.Second
	// share bounds the time of reading: a node reads for at most a fifth of the time.
	share = 5
	// question is the line that asks for a sample. A Service whose endpoints are wanted may follow.
	question = "sample"
	// maxQuestion bounds a line of the input.
	maxQuestion = 512
)

// NewNode builds the hidden command `fairway top-node`, which `fairway top` runs on each node.
func NewNode(e command.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "top-node",
		Hidden: true,
		Short:  "Print what this node's kernel knows of connections to Services: fairway top runs it",
		Long: `Print what this node's kernel knows of connections to Services: fairway top runs it.

Reads lines, and answers each with one line of JSON. The line "sample" asks for the figures of all
Services, and "sample NAMESPACE/SERVICE" also for the endpoints of one. An input without a line gets one
answer. It reads for at most a fifth of the time, changes nothing, listens nowhere, and ends with its
input, or after 30 seconds without a line.`,
		Example: `  kubectl -n kube-system exec ds/fairway-agent -- fairway top-node`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("only root may read the kernel's connections [run it as root, or in the agent's pod]")
			}
			r := newReader()
			defer r.close()
			return serve(c.Context(), e.Stdin, e.Stdout, r.sample)
		},
	}
}

// serve answers the lines of in with samples. It reads in to its end in a goroutine of its own, which ends when in does.
func serve(ctx context.Context, in io.Reader, out io.Writer, sample func(context.Context, api.Name) (*top.Sample, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := questions(ctx, in)
	answer := func(endpointsOf api.Name) error {
		s, err := sample(ctx, endpointsOf)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(s)
	}
	for answered := false; ; answered = true {
		idle := time.NewTimer(idleLimit)
		select {
		case line, open := <-lines:
			idle.Stop()
			if !open {
				if !answered {
					return answer(api.Name{})
				}
				return nil
			}
			of, err := parseQuestion(line)
			if err == nil {
				err = answer(of)
			}
			if err != nil {
				return err
			}
		case <-idle.C:
			return fmt.Errorf("no question within %v", idleLimit)
		case <-ctx.Done():
			idle.Stop()
			return ctx.Err()
		}
	}
}

func parseQuestion(line string) (endpointsOf api.Name, err error) {
	words := strings.Fields(line)
	if len(words) == 0 || len(words) > 2 || words[0] != question {
		return endpointsOf, fmt.Errorf("question %q [a node knows: sample, sample NAMESPACE/SERVICE]", line)
	}
	if len(words) == 2 {
		return api.ParseName(words[1])
	}
	return endpointsOf, nil
}

// questions returns the lines of the input. The channel is closed at the end of the input.
func questions(ctx context.Context, in io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		if in == nil {
			return
		}
		s := bufio.NewScanner(in)
		s.Buffer(make([]byte, maxQuestion), maxQuestion)
		for more := true; more; {
			line := ""
			if more = s.Scan(); more {
				line = s.Text()
			} else if s.Err() == nil {
				return
			} else {
				line = s.Err().Error() // which is no question
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

// A reader reads samples from the kernel of this node.
type reader struct {
	run     int64
	begun   time.Time
	table   *conntrack.Table
	tally   top.Tally
	modes   []datapath.Datapath
	rules   []top.Rules
	rulesAt time.Time
	// next is the earliest time of the next sample, so that reading stays within its share of the time.
	next time.Time
}

func newReader() *reader {
	log := slog.New(slog.DiscardHandler)
	return &reader{run: rand.Int64(), begun: time.Now(), table: conntrack.New(conntrack.Config{Log: log})}
}

func (r *reader) close() {
	r.table.Close()
	r.closeModes()
}

func (r *reader) closeModes() {
	for _, dp := range r.modes {
		dp.Close()
	}
	r.modes, r.rules = nil, nil
}

// sample reads a sample. It waits first, if the last one took long.
func (r *reader) sample(ctx context.Context, endpointsOf api.Name) (*top.Sample, error) {
	select {
	case <-time.After(time.Until(r.next)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	begin := time.Now()
	defer func() { r.next = begin.Add(share * time.Since(begin)) }()
	if begin.Sub(r.rulesAt) > rulesAge {
		if err := r.readRules(ctx); err != nil {
			return nil, err
		}
	}
	s := &top.Sample{Run: r.run, CountsBytes: accounting()}
	if err := r.readConnections(ctx, s); err != nil {
		return nil, err
	}
	counters, err := r.readCounters(ctx, s)
	if err != nil {
		return nil, err
	}
	r.tally.Fill(s, counters, endpointsOf)
	return s, nil
}

// readRules reads the Services of each mode that has rules on the node.
func (r *reader) readRules(ctx context.Context) error {
	begin := time.Now()
	if len(r.modes) == 0 {
		all, err := modes.All().Found(ctx, modes.Options{})
		if err != nil {
			return err
		}
		r.modes = all
	}
	local, err := conntrack.LocalAddrs()
	if err != nil {
		return err
	}
	var rules []top.Rules
	for _, dp := range r.modes {
		held, err := dp.Adopt(ctx)
		if err != nil {
			r.closeModes()
			return err
		}
		if !held.Found { // the agent has another mode now
			r.closeModes()
			r.rulesAt = time.Time{}
			return nil
		}
		rules = append(rules, top.Rules{
			Index:   service.NewIndex(held.Table),
			Carries: dp.Info().Capabilities.CarriesFlows,
			Local:   func(a netip.Addr) bool { return local[a] },
		})
	}
	// A table that takes long is read less often.
	r.rules, r.rulesAt = rules, time.Now().Add(share*time.Since(begin))
	return nil
}

// readConnections counts the connections of conntrack.
func (r *reader) readConnections(ctx context.Context, s *top.Sample) error {
	r.tally.Begin(r.rules)
	s.Millis = time.Since(r.begun).Milliseconds()
	entries, err := r.table.Each(ctx, func(e conntrack.Entry) error {
		if s.Read++; s.Read > top.MaxEntries {
			s.Read--
			return conntrack.ErrEnough
		}
		bytes, _ := e.Bytes()
		r.tally.Add(top.Connection{
			ID: e.ID(), Proto: e.Proto(), Client: e.Client(), Frontend: e.Frontend(), Endpoint: e.Endpoint(),
			Open: e.Open() || e.Proto() != api.TCP, Unanswered: e.Unanswered(), Bytes: bytes,
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read conntrack: %w", err)
	}
	r.tally.End()
	s.Entries = max(entries, s.Read)
	if s.Read < top.MaxEntries {
		s.Entries = s.Read // entries came and went while they were read
	}
	return nil
}

// readCounters reads the counters of the rules.
func (r *reader) readCounters(ctx context.Context, s *top.Sample) (map[api.PortName]top.Refused, error) {
	all := map[api.PortName]top.Refused{}
	for _, dp := range r.modes {
		info := dp.Info()
		s.Modes = append(s.Modes, info.Name)
		s.AtConnect = s.AtConnect || info.Name == datapath.EBPF
		counts, err := dp.Counts(ctx)
		if err != nil {
			return nil, err
		}
		if counts == nil { // only the agent's process has them
			continue
		}
		s.CountsRejects = s.CountsRejects || info.Capabilities.Counts&datapath.CountsRejects != 0
		s.CountsDrops = s.CountsDrops || info.Capabilities.Counts&datapath.CountsDrops != 0
		for name, c := range counts {
			sum := all[name]
			sum.Rejects, sum.Drops = sum.Rejects+c.Rejects, sum.Drops+c.Drops
			all[name] = sum
		}
	}
	return all, nil
}

// accounting reports whether conntrack counts the bytes of new connections.
func accounting() bool {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_acct")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}
