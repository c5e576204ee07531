package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// WriteProgram writes the constant ruleset of a datapath that has one.
func WriteProgram(w io.Writer, dp Datapath) error {
	info := dp.Info()
	if info.Program == "" {
		return fmt.Errorf("mode %s has no constant program [leave out --program]", info.Name)
	}
	_, err := io.WriteString(w, info.Program)
	return err
}

// A Listing is what some datapaths do, as commands print it.
type Listing struct {
	Modes []ModeListing `json:"modes"`
}

// A ModeListing is what one datapath does.
type ModeListing struct {
	service.Listing
	// Objects are the kernel objects behind each address, if they were asked for.
	Objects []AddressObjects `json:"objects,omitempty"`
}

// AddressObjects are the kernel objects that make an address of a Service work.
type AddressObjects struct {
	Address string   `json:"address"`
	Service string   `json:"service"`
	Objects []Object `json:"objects"`
}

// A Selection says what List lists.
type Selection struct {
	Namespace string    // empty: all
	Only      *api.Name // nil: all
	Objects   bool      // also the kernel objects
}

// List reads back what the kernel does.
func List(ctx context.Context, dp Datapath, s Selection) (ModeListing, error) {
	held, err := dp.Adopt(ctx)
	if err != nil {
		return ModeListing{}, err
	}
	table := held.Table
	if services, _ := table.Len(); !held.Found && services == 0 {
		return ModeListing{}, fmt.Errorf("mode %s has no rules on this node [fairway dump without --proxy-mode shows every mode that has]", dp.Info().Name)
	}
	if s.Only != nil {
		if table = table.Only(*s.Only); table == nil {
			return ModeListing{}, fmt.Errorf("the kernel holds nothing for Service %v", *s.Only)
		}
	}
	l := ModeListing{Listing: table.List(dp.Info().Name, s.Namespace)}
	if !s.Objects {
		return l, nil
	}
	l.WithoutLegend = true
	for _, f := range table.Sorted() {
		all, err := dp.Explain(ctx, f.Key())
		if err != nil {
			return l, err
		}
		l.Objects = append(l.Objects, AddressObjects{f.Key().String(), f.Service.String(), all})
	}
	return l, nil
}

// WriteTable implements output.Value.
func (l Listing) WriteTable(w io.Writer, wide bool) error {
	for i, m := range l.Modes {
		m.WithoutLegend = m.WithoutLegend || i < len(l.Modes)-1
		if err := m.WriteTable(w, wide); err != nil {
			return err
		}
	}
	return nil
}

// WriteTable writes the services and then the objects of each address.
func (m ModeListing) WriteTable(w io.Writer, wide bool) error {
	err := m.Listing.WriteTable(w, wide)
	for _, a := range m.Objects {
		_, werr := fmt.Fprintf(w, "\n%s %s\n", a.Address, a.Service)
		err = errors.Join(err, werr)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, o := range a.Objects {
			_, werr := fmt.Fprintf(tw, "  %s\t%s\t%s\n", o.Kind, o.Name, o.Text)
			err = errors.Join(err, werr)
		}
		err = errors.Join(err, tw.Flush())
	}
	return err
}
