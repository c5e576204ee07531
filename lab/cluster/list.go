package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// defaultName stands for the lab with the empty name in texts.
const defaultName = "(default)"

// String returns the lab's name for texts.
func (l Lab) String() string {
	if l.Name == "" {
		return defaultName
	}
	return l.Name
}

// Labs lists the labs on this machine by name, including those that are only partly made.
func Labs() []Lab {
	dirs, err := filepath.Glob("/var/lib/fairway-lab*/" + stateFile)
	if err != nil {
		panic(err) // the pattern is wrong
	}
	var labs []Lab
	for _, dir := range dirs {
		id := filepath.Base(filepath.Dir(dir))
		l := Lab{Name: strings.TrimPrefix(strings.TrimPrefix(id, "fairway-lab"), "-")}
		if l.id() == id && l.CheckName() == nil {
			labs = append(labs, l)
		}
	}
	slices.SortFunc(labs, func(a, b Lab) int { return strings.Compare(a.Name, b.Name) })
	return labs
}

func listed(labs []Lab) string {
	names := make([]string, len(labs))
	for i, l := range labs {
		names[i] = l.String()
	}
	return strings.Join(names, ", ")
}

// A Summary describes one lab on this machine. Its JSON fields are stable.
type Summary struct {
	Name       string    `json:"name"`  // empty for the lab without a name
	State      string    `json:"state"` // up, starting, broken, unreadable
	Nodes      int       `json:"nodes"`
	Family     string    `json:"family,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	Kubeconfig string    `json:"kubeconfig,omitempty"`
}

// Summaries describes the labs on this machine.
type Summaries struct {
	Labs []Summary `json:"labs"`
}

// List describes all labs on this machine.
func List() Summaries {
	all := Summaries{Labs: []Summary{}}
	for _, l := range Labs() {
		one := Summary{Name: l.Name, State: "unreadable"}
		if s, err := l.load(); err == nil {
			one = Summary{l.Name, s.phase(), len(s.nodes()), fmt.Sprint(s.Options.Family), s.Started, l.Kubeconfig()}
		}
		all.Labs = append(all.Labs, one)
	}
	return all
}

// WriteTable implements output.Value.
func (s Summaries) WriteTable(out io.Writer, _ bool) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tSTATE\tNODES\tFAMILY\tAGE\tKUBECONFIG")
	for _, l := range s.Labs {
		name := Lab{l.Name}.String()
		if l.Started.IsZero() {
			fmt.Fprintf(table, "%s\t%s\t-\t-\t-\t-\n", name, l.State)
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", name, l.State, l.Nodes, l.Family, time.Since(l.Started).Round(time.Second), l.Kubeconfig)
	}
	return table.Flush()
}

// phase describes the lab's state in one word.
func (s *State) phase() string {
	switch {
	case len(s.dead()) > 0:
		return "broken"
	case !s.Ready:
		return "starting"
	}
	return "up"
}

// LogNames lists the parts of the lab that have a log.
func (l Lab) LogNames() ([]string, error) {
	if _, err := l.load(); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(l.logs(), "*.log"))
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".log")
	}
	return files, nil
}

// Log writes the log of a part to out. The part is one of LogNames. With follow, Log also writes new lines until ctx is
// done.
func (l Lab) Log(ctx context.Context, part string, follow bool, out io.Writer) error {
	names, err := l.LogNames()
	if err != nil {
		return err
	}
	if !slices.Contains(names, part) {
		hint := ""
		if slices.Contains([]string{"agent", "controller", "dns", "speaker"}, strings.TrimPrefix(part, "fairway-")) {
			hint = "; pods have theirs: " + l.Command("kubectl -n kube-system logs -l app.kubernetes.io/name=fairway-"+strings.TrimPrefix(part, "fairway-"))
		}
		return fmt.Errorf("the lab has no log %q [there are %s%s]", part, strings.Join(names, ", "), hint)
	}
	file, err := os.Open(filepath.Join(l.logs(), part+".log"))
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer file.Close()
	for {
		if _, err := io.Copy(out, file); err != nil {
			return fmt.Errorf("copy log: %w", err)
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}
