/** What became of an elicitation, in words for the person: on pages, in the status JSON, in the next call's message. */
import type { Elicitation, EndReason } from '@viaduct/shared/elicitations';

export interface Outcome {
  readonly title: string;
  readonly text: string;
}

export function describeOutcome(elicitation: Elicitation, displayName: string): Outcome {
  switch (elicitation.state) {
    case 'created':
    case 'opened':
      if (elicitation.reason === 'secret_refused') {
        return {
          title: `${displayName} did not accept that`,
          text: 'What you typed was refused, so nothing was connected. Check it and try again.',
        };
      }
      return {
        title: 'Waiting for your decision',
        text: `${displayName} is not connected yet. Nothing happens until you decide.`,
      };
    case 'authorized':
    case 'exchanging':
      return {
        title: `Connecting ${displayName}`,
        text: `${displayName} has sent you back. The connection is being completed; this takes a moment.`,
      };
    case 'completed':
      return {
        title: `${displayName} is connected`,
        text: 'You can close this window and go back to your application.',
      };
    case 'declined':
      return {
        title: 'Not connected',
        text:
          elicitation.reason === 'denied_there'
            ? `Access was declined at ${displayName}. Nothing was connected.`
            : 'You declined. Nothing was connected, and nothing was sent anywhere.',
      };
    case 'cancelled':
      return { title: 'Cancelled', text: 'This request was withdrawn. Nothing was connected.' };
    case 'expired':
      return {
        title: 'This link has expired',
        text: 'Nobody finished in time, so nothing was connected. Call the tool again for a new link.',
      };
    case 'failed':
      return {
        title: `${displayName} could not be connected`,
        text: `${failure(elicitation.reason, displayName)} Call the tool again for a new link.`,
      };
  }
}

/** For the message of the next link; '' when the last one ended well, or when there was none. */
export function describeLastAttempt(last: Elicitation | undefined, displayName: string): string {
  switch (last?.state) {
    case 'declined':
      return ' The last time, access was declined.';
    case 'expired':
      return ' The last link expired before it was used to the end.';
    case 'failed':
      return ` The last attempt failed: ${failure(last.reason, displayName)}`;
    default:
      return '';
  }
}

function failure(reason: EndReason | undefined, displayName: string): string {
  switch (reason) {
    case 'unavailable':
      return `${displayName} could not be reached.`;
    case 'refused':
      return `${displayName} refused this gateway. Tell the people who run it.`;
    case 'invalid_grant':
      return `${displayName} no longer accepted the approval; it may have taken too long.`;
    case 'invalid_answer':
      return `${displayName} gave an answer that makes no sense.`;
    case 'wrong_issuer':
      return `The answer did not come from ${displayName}.`;
    case 'third_party_error':
      return `${displayName} reported an error.`;
    case 'client_dropped':
      return `${displayName} no longer knew this gateway, which introduces itself again the next time.`;
    case 'interrupted':
      return 'The connection was interrupted half-way, and to be safe it was not tried a second time.';
    case 'secret_refused':
      return `${displayName} refused what was typed, too often.`;
    case 'not_configured':
      return `${displayName} is no longer configured here.`;
    default:
      return 'Something went wrong.';
  }
}
