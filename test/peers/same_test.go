package peers

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The seeds are fixed by default, so unchanged code has equal results. To test more: SEEDS=5000 FIRST_SEED=100000 go
// test -run TestSamePackets -timeout 2h .
const (
	defaultSeeds = 500
	perMode      = 20  // seeds for each of our other modes, if there are as many
	perState     = 120 // packets, each sent many times, for each state of a cluster
	atOnce       = 5   // oracles: while one waits for a program, another sends
)

// number reads an environment variable.
func number(t *testing.T, name string, or uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return or
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is no number", name, text)
	}
	return n
}

// TestSamePackets compares our agent with kube-proxy. Each seed is a random cluster and a change of it. The end of the
// output lists all differences again.
func TestSamePackets(t *testing.T) {
	t.Parallel()
	start := time.Now()
	seeds, first := int(number(t, "SEEDS", defaultSeeds)), number(t, "FIRST_SEED", 1)
	var (
		wait sync.WaitGroup
		mu   sync.Mutex
		sum  summary
		slot = make(chan struct{}, atOnce)
	)
	share := func(c configuration, from, below, step int) {
		wait.Go(func() {
			slot <- struct{}{}
			defer func() { <-slot }()
			t.Run(c.name, func(t *testing.T) {
				if from >= below {
					return // fewer seeds than configurations
				}
				o := newOracle(t, c, c)
				for i := from; i < below; i += step {
					seed := first + uint64(i)
					n := o.seed(t, seed, func(step int, in objects, all []difference) {
						found := o.report(t, seed, step, in, all)
						mu.Lock()
						defer mu.Unlock()
						sum.differ = append(sum.differ, found...)
					})
					mu.Lock()
					sum.seeds++
					sum.packets.add(n)
					mu.Unlock()
				}
				mu.Lock()
				defer mu.Unlock()
				sum.add(o.explained)
			})
		})
	}
	again := min(seeds, perMode)
	for _, c := range otherModes {
		share(c, 0, again, 1)
	}
	for index, c := range configurations {
		share(c, index, seeds, len(configurations))
	}
	wait.Wait()
	t.Logf("%v\n    from seed %d, in %v", sum, first, time.Since(start).Round(time.Second))
	if all := seeds + again*len(otherModes); sum.seeds != all {
		t.Errorf("only %d of %d seeds were compared", sum.seeds, all)
	}
	if len(sum.differ) > 0 {
		t.Errorf("%d packets differ:\n%s", len(sum.differ), strings.Join(sum.differ[:min(len(sum.differ), 20)], "\n"))
	}
}

// A summary has the results of a run.
type summary struct {
	seeds     int
	packets   tally
	differ    []string
	explained map[string]int
}

func (s *summary) add(explained map[string]int) {
	if s.explained == nil {
		s.explained = map[string]int{}
	}
	for name, n := range explained {
		s.explained[name] += n
	}
}

func (s summary) String() string {
	words := []string{fmt.Sprintf("%d seeds: %v", s.seeds, s.packets)}
	for name, n := range s.explained {
		words = append(words, fmt.Sprintf("%d packets differ as documented: %s", n, name))
	}
	slices.Sort(words[1:])
	return strings.Join(words, "\n    ")
}

// TestOracleNotices tests the oracle itself: it finds that programs with different configurations differ.
func TestOracleNotices(t *testing.T) {
	for _, pair := range [][2]string{{podsKnown, masqueradeAll}, {podsKnown, rangeOnly}, {somePodsKnown, podsKnown}} {
		t.Run(pair[0]+" against "+pair[1], func(t *testing.T) {
			found := 0
			o := newOracle(t, configured(pair[0]), configured(pair[1]))
			o.looks = looks[:1] // one look is enough, because differences are expected
			sent := o.seed(t, 1, func(_ int, _ objects, all []difference) {
				found += len(all)
				if len(all) > 0 {
					t.Logf("for example %v", all[0])
				}
			})
			if found < 3 {
				t.Errorf("found %d differences among %v", found, sent)
			}
		})
	}
}
