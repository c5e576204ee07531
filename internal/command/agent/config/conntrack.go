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
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", 32<<10, usage("conntrack-max-per-core"))
	fs.Int32Var(c.Min, "conntrack-min", 128<<10, usage("conntrack-min"))
	fs.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", 24*time.Hour, usage("conntrack-tcp-timeout-established"))
	fs.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", time.Hour, usage("conntrack-tcp-timeout-close-wait"))
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, usage("conntrack-tcp-be-liberal"))
	fs.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0, usage("conntrack-udp-timeout"))
	fs.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, usage("conntrack-udp-timeout-stream"))
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
