package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conntrack holds the node's conntrack settings, with kube-proxy's defaults. 0 leaves a setting unchanged.
type Conntrack struct {
	MaxPerCore, Min int
	// TCPEstablished, TCPCloseWait, UDP and UDPStream are timeouts of idle flows. UDPStream is for flows with an
	// answer.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	TCPBeLiberal                                 bool // accept packets outside of the TCP window
}

// mostScaled is kube-proxy's upper limit of Max. A table of this size takes about 300 MB.
const mostScaled = 1 << 20

// Max returns the size of the conntrack table for a number of cores. 0 leaves the setting unchanged.
func (c Conntrack) Max(cores int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return max(min(c.MaxPerCore*cores, mostScaled), c.Min)
}

func (f *Flags) addConntrack() {
	fs, c := f.fs, &f.kp.Conntrack
	c.MaxPerCore, c.Min = new(int32), new(int32)
	c.TCPEstablishedTimeout, c.TCPCloseWaitTimeout = new(metav1.Duration), new(metav1.Duration)
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", 32<<10, "Conntrack entries per CPU core; a larger current limit is kept (0: unchanged)")
	fs.Int32Var(c.Min, "conntrack-min", 128<<10, "Fewest conntrack entries, whatever the number of cores")
	fs.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", 24*time.Hour, "Conntrack timeout of established TCP connections (0: unchanged)")
	fs.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", time.Hour, "Conntrack timeout of TCP connections in CLOSE_WAIT (0: unchanged)")
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Accept TCP packets outside the window (nf_conntrack_tcp_be_liberal)")
	fs.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "Conntrack timeout of UDP flows without a reply (0: unchanged)")
	fs.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "Conntrack timeout of UDP flows with replies (0: unchanged)")
}

func (r *resolver) conntrack(c *Config) error {
	kp := r.kp.Conntrack
	number := func(field string, to *int, from *int32, or int) error {
		if *to = or; from != nil {
			*to = int(*from)
		}
		if *to < 0 {
			return r.errorf(field, "%d: must not be less than 0", *to)
		}
		return nil
	}
	period := func(field string, to *time.Duration, from *metav1.Duration, or time.Duration) error {
		if *to = or; from != nil {
			*to = from.Duration
		}
		if *to < 0 {
			return r.errorf(field, "%v: must not be less than 0", *to)
		}
		return nil
	}
	ct := &c.Conntrack
	ct.TCPBeLiberal = kp.TCPBeLiberal
	for _, err := range []error{
		number("conntrack.maxPerCore", &ct.MaxPerCore, kp.MaxPerCore, 32<<10),
		number("conntrack.min", &ct.Min, kp.Min, 128<<10),
		period("conntrack.tcpEstablishedTimeout", &ct.TCPEstablished, kp.TCPEstablishedTimeout, 24*time.Hour),
		period("conntrack.tcpCloseWaitTimeout", &ct.TCPCloseWait, kp.TCPCloseWaitTimeout, time.Hour),
		period("conntrack.udpTimeout", &ct.UDP, &kp.UDPTimeout, 0),
		period("conntrack.udpStreamTimeout", &ct.UDPStream, &kp.UDPStreamTimeout, 0),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}
