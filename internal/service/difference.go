package service

import (
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Difference lists the rows that turn one table into another. Rows with the change "remove" are only in the first
// table, rows with "add" only in the second. Programs read the JSON, so the fields stay.
type Difference struct {
	Mode     string          `json:"mode"`
	Services []Changed       `json:"services"`
	Settings []SettingChange `json:"settings"`
}

// A Changed is a row to remove or to add.
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

// Compare returns the changes that turn have into want.
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
	h, w := have.List(mode, "-"), want.List(mode, "-") // no namespace has this name: the settings only
	for _, s := range []SettingChange{{"pods", h.Pods, w.Pods}, {"nodePortAddresses", h.NodePorts, w.NodePorts}, {"serviceCIDRs", h.ServiceCIDRs, w.ServiceCIDRs}} {
		if !slices.Equal(s.Has, s.Wants) {
			d.Settings = append(d.Settings, s)
		}
	}
	return d
}

// Any reports whether anything differs.
func (d Difference) Any() bool { return len(d.Services)+len(d.Settings) > 0 }

// Only returns the table of one Service; nil if the table does not have the Service.
func (t *Table) Only(name api.Name) *Table {
	e := t.Entry(name)
	if e == nil {
		return nil
	}
	return NewTable(t.Settings, e.Frontends)
}
