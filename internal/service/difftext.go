package service

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/fairway-net/fairway/internal/api"
)

// A Difference says how a table must change to be another, as commands print it: rows with
// the change "remove" are only in the one, rows with "add" only in the other.
type Difference struct {
	Mode     string          `json:"mode"`
	Services []Changed       `json:"services"`
	Settings []SettingChange `json:"settings"`
}

// A Changed is a row that must go or come.
type Changed struct {
	Change string `json:"change"` // remove, add
	Row
}

// A SettingChange is a setting of the node that differs.
type SettingChange struct {
	Setting string   `json:"setting"`
	Has     []string `json:"has"`
	Wants   []string `json:"wants"`
}

// Compare returns how have must change to be want.
func Compare(mode string, have, want *Table) Difference {
	d := Difference{Mode: mode, Services: []Changed{}, Settings: []SettingChange{}}
	note := func(change string, f *Frontend, s Settings) {
		if f == nil {
			return
		}
		for _, r := range f.list(s) {
			d.Services = append(d.Services, Changed{change, r})
		}
	}
	for _, c := range Diff(have, want) {
		note("remove", c.Old, have.Settings)
		note("add", c.New, want.Settings)
	}
	if have.Settings.Equal(want.Settings) {
		return d
	}
	h, w := have.List(mode, "-"), want.List(mode, "-") // of no namespace: the settings only
	for _, s := range []SettingChange{{"pods", h.Pods, w.Pods}, {"nodePortAddresses", h.NodePorts, w.NodePorts}, {"serviceCIDRs", h.ServiceCIDRs, w.ServiceCIDRs}} {
		if orDash(s.Has) != orDash(s.Wants) {
			d.Settings = append(d.Settings, s)
		}
	}
	return d
}

// Any reports whether anything differs.
func (d Difference) Any() bool { return len(d.Services)+len(d.Settings) > 0 }

// WriteTable implements output.Value: as diff(1) it writes nothing if nothing differs.
func (d Difference) WriteTable(w io.Writer, wide bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(d.Services) > 0 {
		fmt.Fprintln(tw, "\t"+strings.Join(rowHead(wide), "\t"))
	}
	for _, c := range d.Services {
		for _, line := range c.lines(wide) {
			fmt.Fprintln(tw, map[string]string{"remove": "-", "add": "+"}[c.Change]+"\t"+strings.Join(line, "\t"))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, s := range d.Settings {
		if _, err := fmt.Fprintf(w, "- %s %s\n+ %s %s\n", s.Setting, orDash(s.Has), s.Setting, orDash(s.Wants)); err != nil {
			return err
		}
	}
	return nil
}

// Only returns the table of one Service; nil if the table has nothing of it.
func (t *Table) Only(name api.Name) *Table {
	e := t.Entry(name)
	if e == nil {
		return nil
	}
	return NewTable(t.Settings, e.Frontends)
}
