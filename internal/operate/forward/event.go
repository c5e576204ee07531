package forward

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"
)

// What happened.
const (
	Forwarded    = "forwarded"     // a Target is served from now on
	Pods         = "pods"          // it has other pods
	Gone         = "gone"          // the Service, the port or the pod is gone
	NotForwarded = "not forwarded" // it cannot be served
	Failed       = "failed"        // a connection of it failed
)

// An Event is a change of what is forwarded, for people as a line and for programs as JSON.
type Event struct {
	Time   time.Time      `json:"time"`
	What   string         `json:"what"`
	Target string         `json:"target"`
	At     netip.AddrPort `json:"at,omitzero"`
	Names  []string       `json:"names,omitempty"`
	Pods   []string       `json:"pods,omitempty"`
	Why    string         `json:"why,omitempty"`
}

// String returns the event as a line.
func (e Event) String() string {
	switch e.What {
	case Forwarded:
		where := e.At.String()
		if len(e.Names) > 0 {
			where = fmt.Sprintf("%s:%d (%s)", e.Names[0], e.At.Port(), e.At.Addr())
		}
		return fmt.Sprintf("%s  is at %s, %s", e.Target, where, podText(e.Pods))
	case Pods:
		return fmt.Sprintf("%s  goes on with %s", e.Target, podText(e.Pods))
	case Gone:
		return e.Target + "  is gone"
	case NotForwarded:
		return fmt.Sprintf("%s  is not forwarded: %s", e.Target, e.Why)
	}
	return fmt.Sprintf("%s  lost a connection: %s", e.Target, e.Why)
}

func podText(pods []string) string {
	switch len(pods) {
	case 0:
		return "which no pod serves now"
	case 1:
		return "served by pod " + pods[0]
	}
	return fmt.Sprintf("served by %d pods", len(pods))
}

// WriteJSON writes an event as one line of JSON.
func (e Event) WriteJSON(w io.Writer) {
	_ = json.NewEncoder(w).Encode(e) // the reader may have gone; the command goes on
}

// A Row is a Target in the table.
type Row struct {
	Target, Name                        string
	At                                  netip.AddrPort
	Pods                                []string
	Open, Sent, Received, Moved, Failed int64
	Why                                 string // the last failure
}

// WriteTable writes rows as a table, and below it the last failures.
func WriteTable(w io.Writer, rows []Row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tADDRESS\tPODS\tOPEN\tSENT\tRECEIVED\tMOVED\tFAILED")
	for _, r := range rows {
		at := r.At.String()
		if r.Name != "" {
			at = fmt.Sprintf("%s:%d", r.Name, r.At.Port())
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%d\t%d\n", r.Target, at, len(r.Pods), r.Open, bytesText(r.Sent), bytesText(r.Received), r.Moved, r.Failed)
	}
	_ = t.Flush()
	for _, r := range rows {
		if r.Why != "" {
			fmt.Fprintf(w, "%s  %s\n", r.Target, strings.ToValidUTF8(r.Why, "?"))
		}
	}
}

// bytesText writes a number of bytes in 1,024s, as kubectl and ls -h do.
func bytesText(n int64) string {
	const units = "KMGT"
	if n < 1024 {
		return fmt.Sprint(n)
	}
	f, i := float64(n)/1024, 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	return fmt.Sprintf("%.1f%ci", f, units[i])
}
