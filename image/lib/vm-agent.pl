# SPDX-License-Identifier: LGPL-2.1-or-later
# Inside a virtual machine that image/boot --vm started: runs the commands that image/exec sends. It is no part of
# the image; it comes as a system credential of that one machine, and the unit that starts it does too (image/lib/vm).
#
# Each virtio-serial port org.anchorhold.exec.N carries one command at a time. A frame is "AHX1", a type, a length
# (32 bits, big endian), and that many bytes. To here: R (a nonce of 16 bytes, then the arguments, separated by NUL), I (standard
# input; empty: its end), K (end it). From here: A (that nonce: whatever came before it belongs to somebody else),
# O and E (standard output and error), X (status as a shell gives it). A request while a command runs means
# that whoever sent the first one is gone: that command is killed.
use strict;
use warnings;
use Fcntl;
use IPC::Open3;
use POSIX qw(WNOHANG setsid);
use Symbol 'gensym';
use Time::HiRes qw(sleep);

use constant { MAGIC => 'AHX1', HEADER => 9, CHUNK => 32768, PENDING_MAX => 1 << 20 };

# ports COUNT: their devices, as soon as the kernel has all of them.
sub ports {
        my ($count) = @_;
        while (1) {
                my @found;
                for my $folder (glob '/sys/class/virtio-ports/*') {
                        open my $file, '<', "$folder/name" or next;
                        my $name = <$file> // '';
                        push @found, '/dev/' . $folder =~ s,.*/,,r if $name =~ /^org\.anchorhold\.exec\./;
                }
                return @found if @found == $count && !grep { !-e } @found;
                sleep 0.1;
        }
}

sub put_all {
        my ($port, $data) = @_;
        while (length $data) {
                my $n = syswrite $port, $data;
                if (!defined $n) {
                        die "port: $!" unless $!{EAGAIN} || $!{EINTR};
                        my $w = '';
                        vec($w, fileno $port, 1) = 1;
                        select undef, $w, undef, 1;
                        next;
                }
                substr $data, 0, $n, '';
        }
}

sub frame {
        my ($port, $type, $data) = @_;
        put_all($port, MAGIC . pack('aN', $type, length $data) . $data);
}

# take BUFFER: the first whole frame, removed from the buffer; bytes that begin none are thrown away.
sub take {
        my ($buffer) = @_;
        my $at = index $$buffer, MAGIC;
        substr($$buffer, 0, $at < 0 ? (length($$buffer) > 3 ? length($$buffer) - 3 : 0) : $at, '') if $at;
        return if $at < 0 || length $$buffer < HEADER;
        my ($type, $length) = unpack 'x4aN', $$buffer;
        return if length $$buffer < HEADER + $length;
        my $data = substr $$buffer, HEADER, $length;
        substr $$buffer, 0, HEADER + $length, '';
        return ($type, $data);
}

sub start {
        my ($words) = @_;
        my ($in, $out, $err) = (undef, undef, gensym);
        my $pid = eval {
                local %ENV = (PATH => '/usr/sbin:/usr/bin:/sbin:/bin', HOME => '/root', LANG => 'C.UTF-8', TERM => 'dumb', SYSTEMD_PAGER => '');
                open3($in, $out, $err, '/usr/bin/setsid', '/usr/bin/env', '-C', '/root', '--', @$words);
        } or return;
        fcntl $in, F_SETFL, O_NONBLOCK | O_WRONLY;
        return { pid => $pid, in => $in, out => $out, err => $err, pending => '', eof => 0 };
}

sub end {
        my ($job) = @_;
        kill 'KILL', -$job->{pid} if $job->{pid};
        waitpid $job->{pid}, 0 if $job->{pid};
}

# feed JOB: what standard input takes now.
sub feed {
        my ($job) = @_;
        return unless $job->{in};
        if (length $job->{pending}) {
                my $n = syswrite $job->{in}, $job->{pending};
                if (defined $n) { substr $job->{pending}, 0, $n, '' }
                elsif (!$!{EAGAIN} && !$!{EINTR}) { $job->{pending} = ''; close $job->{in}; undef $job->{in}; return }
        }
        if ($job->{eof} && !length $job->{pending}) { close $job->{in}; undef $job->{in} }
}

# A job is over when its process is gone and its output was read, or nobody has written for a while: a daemon that it left
# behind may keep the pipes open.
sub finished {
        my ($job) = @_;
        if (!defined $job->{status}) {
                return 0 unless waitpid($job->{pid}, WNOHANG) == $job->{pid};
                $job->{status} = $? & 127 ? 128 + ($? & 127) : $? >> 8;
                $job->{quiet} = 0;
        }
        return !$job->{out} && !$job->{err} || $job->{quiet}++ >= 5;
}

sub serve {
        my ($device) = @_;
        sysopen my $port, $device, O_RDWR | O_NONBLOCK or die "$device: $!";
        my ($buffer, $job) = ('');
        $SIG{PIPE} = 'IGNORE';
        while (1) {
                my ($r, $w) = ('', '');
                vec($r, fileno $port, 1) = 1 if !$job || length $job->{pending} < PENDING_MAX;
                for my $name ('out', 'err') {
                        vec($r, fileno $job->{$name}, 1) = 1 if $job && $job->{$name};
                }
                vec($w, fileno $job->{in}, 1) = 1 if $job && $job->{in} && (length $job->{pending} || $job->{eof});
                select $r, $w, undef, $job ? 0.05 : 5;

                my $n = sysread $port, $buffer, CHUNK, length $buffer;
                if (defined $n && $n == 0) {                            # nobody is connected
                        if ($job) { end($job); undef $job }
                        $buffer = '';
                        sleep 0.1;
                        next;
                }
                while (my ($type, $data) = take(\$buffer)) {
                        if ($type eq 'R') {
                                end($job) if $job;
                                frame($port, 'A', substr $data, 0, 16);
                                $job = start([split /\0/, substr($data, 16), -1]);
                                frame($port, 'X', '127') unless $job;
                        } elsif ($type eq 'I' && $job) {
                                if (length $data) { $job->{pending} .= $data } else { $job->{eof} = 1 }
                        } elsif ($type eq 'K' && $job) {
                                end($job);
                                undef $job;
                        }
                }
                next unless $job;

                feed($job);
                for my $name ('out', 'err') {
                        next unless $job->{$name} && vec($r, fileno $job->{$name}, 1);
                        $n = sysread $job->{$name}, my $data, CHUNK;
                        if ($n) { frame($port, $name eq 'out' ? 'O' : 'E', $data); $job->{quiet} = 0 }
                        else { close $job->{$name}; undef $job->{$name} }
                }
                if (finished($job)) {
                        frame($port, 'X', $job->{status});
                        undef $job;
                }
        }
}

for my $device (ports(shift)) {
        my $pid = fork // die "fork: $!";
        next if $pid;
        serve($device);
        exit 1;
}
wait;
die "the worker of a port ended\n";
